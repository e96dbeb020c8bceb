#include "comm/gloo/gloo_transport.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "comm/gloo/no_broken_pipe.h"

namespace tessera::comm {
namespace {

class GlooTransfer : public Transfer {
 public:
  explicit GlooTransfer(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  // Note [Asking Gloo]
  // Gloo tells that a transfer is done only to who waits, and a wait that times out closes every connection of the
  // group. So the first question starts a thread that waits in earnest, and the answer is whether it has returned.
  bool test() override {
    if (done_) return true;
    if (!waiter_.valid()) {
      waiter_ = std::async(std::launch::async, [work = work_] { work->wait(kNoDeadline); });
    }
    if (waiter_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    finish([this] { waiter_.get(); });
    return true;
  }

  void wait(std::chrono::steady_clock::time_point deadline) override {
    if (done_) return;
    if (waiter_.valid()) {
      if (waiter_.wait_until(deadline) != std::future_status::ready) throw CommError("gloo: the deadline has passed");
      finish([this] { waiter_.get(); });
      return;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    finish([&] { work_->wait(std::max(left, std::chrono::milliseconds(1))); });
  }

 private:
  static constexpr std::chrono::milliseconds kNoDeadline = std::chrono::hours(24);

  template <typename Completion>
  void finish(Completion completion) {
    try {
      completion();
    } catch (const std::exception& error) {
      throw CommError(std::string("gloo: ") + error.what());
    }
    done_ = true;
  }

  c10::intrusive_ptr<c10d::Work> work_;
  std::future<void> waiter_;
  bool done_ = false;
};

std::vector<at::Tensor> as_tensors(std::byte* data, std::size_t num_bytes) {
  return {at::from_blob(data, {static_cast<std::int64_t>(num_bytes)}, at::TensorOptions().dtype(at::kByte))};
}

}  // namespace

std::unique_ptr<Transfer> GlooTransport::send(std::span<const std::byte> data, int peer, int channel) {
  const NoBrokenPipe this_thread;
  auto tensors = as_tensors(const_cast<std::byte*>(data.data()), data.size());  // NOLINT: sends only read
  return std::make_unique<GlooTransfer>(gloo_->send(tensors, peer, channel));
}

std::unique_ptr<Transfer> GlooTransport::recv(std::span<std::byte> data, int peer, int channel) {
  const NoBrokenPipe this_thread;  // Gloo tells the peer that it is ready
  auto tensors = as_tensors(data.data(), data.size());
  return std::make_unique<GlooTransfer>(gloo_->recv(tensors, peer, channel));
}

}  // namespace tessera::comm
