#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>

#include "support/sim_device/sim_device.h"

namespace tessera::testing {

/// A kernel on the current stream that lasts some milliseconds and notes when it really ran, so that a test need not
/// guess what a busy machine made of them.
class TimedKernel {
 public:
  explicit TimedKernel(const at::Tensor& tensor) {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(sim::kSim).getStream(tensor.device());
    sim::launch(stream, "timed", {{tensor, true}}, [ran = ran_] {
      ran->begin_ns = now_ns();
      std::this_thread::sleep_for(kLength);
      ran->end_ns = now_ns();
    });
  }

  static constexpr std::chrono::milliseconds kLength{10};
  /// When it is over.
  std::int64_t begin_ns() const { return ran_->begin_ns; }
  std::int64_t end_ns() const { return ran_->end_ns; }

 private:
  struct Ran {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };
  static std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  std::shared_ptr<Ran> ran_ = std::make_shared<Ran>();
};

/// A kernel on the current stream that ends when the host opens it: whoever waits for the stream before never returns.
class Gate {
 public:
  explicit Gate(const at::Tensor& tensor) {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(sim::kSim).getStream(tensor.device());
    sim::launch(stream, "gate", {{tensor, true}}, [opened = opened_.get_future().share()] { opened.wait(); });
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() {
    if (!is_open_) opened_.set_value();
    is_open_ = true;
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

}  // namespace tessera::testing
