#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <thread>

#include "support/sim_device/clock.h"
#include "support/sim_device/quiet_mutex.h"

namespace tessera::testing::sim {

/// A stream: a thread that runs what was pushed, in order. The clock is the Runtime's.
class StreamQueue {
 public:
  StreamQueue(std::size_t id, int device);
  /// Runs what is left.
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  std::size_t id() const { return id_; }
  int device() const { return device_; }
  Clock& clock() { return clock_; }

  /// Returns the ticket of `work`: its number in this stream.
  std::uint64_t push(std::function<void()> work);
  std::uint64_t last_ticket() const { return num_pushed_; }
  bool is_done(std::uint64_t ticket) const { return num_done_ >= ticket; }
  /// Of this or another stream.
  void wait(std::uint64_t ticket) const;
  /// Rethrows what failed, once.
  void rethrow();

 private:
  struct Work {
    std::function<void()> run;
    std::shared_ptr<c10::ThreadLocalDebugInfo> hears;
  };
  void run();

  const std::size_t id_;
  const int device_;
  Clock clock_;
  QuietMutex mutex_;  // of the next two
  std::deque<Work> work_;
  std::exception_ptr failure_;
  std::atomic<std::uint64_t> num_pushed_{0};
  std::atomic<std::uint64_t> num_done_{0};
  std::atomic<std::uint64_t> num_signals_{0};  // of work, and of the end
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace tessera::testing::sim
