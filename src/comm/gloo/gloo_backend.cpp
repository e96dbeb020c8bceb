#include "comm/gloo/gloo_backend.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "comm/algorithms/ring_engine.h"
#include "comm/engine/engine_backend.h"
#include "comm/gloo/process_group_gloo.h"

namespace tessera::comm {
namespace {

class GlooTransfer : public Transfer {
 public:
  explicit GlooTransfer(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  // Note [Asking Gloo]
  // Gloo reports the end of a transfer only to a thread that waits for it, and a wait that times out closes every
  // connection of the group. So the first test() starts a thread that waits without a deadline, and test() returns
  // whether that thread is done.
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
  const NoBrokenPipe this_thread;  // a receive writes too: Gloo notifies the peer that it is ready
  auto tensors = as_tensors(data.data(), data.size());
  return std::make_unique<GlooTransfer>(gloo_->recv(tensors, peer, channel));
}

namespace {

// From this size on, the superfluous bytes of Gloo's own reduce_scatter cost more than the ring's extra steps.
constexpr std::size_t kRingBytes = std::size_t{2} << 20;

bool all_equal(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.numel() == tensors.front().numel(); });
}

// Without autograd, because parameters are averaged too. (Gloo treats booleans as bytes, so that true plus true would
// be 2; the collectives below therefore leave booleans to our engine.)
void divide_in_place(at::Tensor tensor, int size) {
  const at::NoGradGuard guard;
  tensor.div_(size);
}

// Gloo only sums; we divide, for every type alike.
template <typename Options>
Options as_sum(const Options& options) {
  Options sum = options;
  if (sum.reduceOp.op_ == c10d::ReduceOp::AVG) sum.reduceOp = c10d::ReduceOp::SUM;
  return sum;
}

template <typename Options>
bool is_average(const Options& options) {
  return options.reduceOp.op_ == c10d::ReduceOp::AVG;
}

}  // namespace

GlooBackend::GlooBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::shared_ptr<Transport> transport,
                         std::chrono::milliseconds timeout)
    : EngineBackend(gloo->getRank(), gloo->getSize(),
                    std::make_shared<RingEngine>(transport, gloo->getRank(), gloo->getSize(), kBackendChannel),
                    transport, timeout),
      gloo_(std::move(gloo)) {}

void GlooBackend::setTimeout(std::chrono::milliseconds timeout) {
  EngineBackend::setTimeout(timeout);
  gloo_->setTimeout(timeout);
}

EngineBackend::WorkPtr GlooBackend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) {
  return gloo_->broadcast(tensors, opts);
}

EngineBackend::WorkPtr GlooBackend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.front().scalar_type() == at::kBool) return EngineBackend::allreduce(tensors, opts);
  if (!is_average(opts)) return gloo_->allreduce(tensors, opts);
  reduce_op_of(opts.reduceOp, tensors.front().scalar_type());  // refuses integers
  return then(gloo_->allreduce(tensors, as_sum(opts)),
              [tensor = tensors.front(), size = getSize()] { divide_in_place(tensor, size); });
}

EngineBackend::WorkPtr GlooBackend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                        const c10d::AllreduceCoalescedOptions& opts) {
  return gloo_->allreduce_coalesced(tensors, opts);
}

EngineBackend::WorkPtr GlooBackend::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) {
  if (tensors.front().scalar_type() == at::kBool) return EngineBackend::reduce(tensors, opts);
  // Gloo leaves partial sums in the tensors of the other ranks, so these pass a copy.
  const bool is_root = opts.rootRank == getRank();
  std::vector<at::Tensor> scratch{is_root ? tensors.front() : tensors.front().clone()};
  auto work = gloo_->reduce(scratch, as_sum(opts));
  if (!is_root || !is_average(opts)) return then(std::move(work), [scratch] {});
  return then(std::move(work), [scratch, size = getSize()] { divide_in_place(scratch.front(), size); });
}

EngineBackend::WorkPtr GlooBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                              std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& opts) {
  if (!outputs.empty() && !all_equal(outputs.front())) return EngineBackend::allgather(outputs, inputs, opts);
  return gloo_->allgather(outputs, inputs, opts);
}

EngineBackend::WorkPtr GlooBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& opts) {
  return gloo_->_allgather_base(output, input, opts);
}

EngineBackend::WorkPtr GlooBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::ReduceScatterOptions& opts) {
  const bool ours = input.nbytes() >= kRingBytes || is_average(opts) || input.scalar_type() == at::kBool;
  if (ours) return EngineBackend::_reduce_scatter_base(output, input, opts);
  return gloo_->_reduce_scatter_base(output, input, opts);
}

EngineBackend::WorkPtr GlooBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                  std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                                                  const c10d::AllToAllOptions& opts) {
  return gloo_->alltoall_base(output, input, output_sizes, input_sizes, opts);
}

EngineBackend::WorkPtr GlooBackend::barrier(const c10d::BarrierOptions& opts) { return gloo_->barrier(opts); }

Connection connect_gloo(const ConnectRequest& request, const std::string& host) {
  auto gloo = make_process_group_gloo(request, host);
  Connection connection;
  connection.transport = std::make_shared<GlooTransport>(gloo);
  connection.backend = c10::make_intrusive<GlooBackend>(gloo, connection.transport, request.timeout);
  connection.is_zero_copy = [](const void*, std::size_t) { return false; };
  return connection;
}

c10::intrusive_ptr<c10d::Backend> bare_gloo(const c10::intrusive_ptr<c10d::Backend>& ours) {
  const auto* gloo = dynamic_cast<const GlooBackend*>(ours.get());
  if (gloo == nullptr) throw InternalError("the backend " + ours->getBackendName() + " is not our Gloo");
  return gloo->bare();
}

}  // namespace tessera::comm
