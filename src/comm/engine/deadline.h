#pragma once

#include <algorithm>
#include <chrono>

namespace tessera::comm {

/// The moment after which a blocking call gives up.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds timeout) { return Deadline(Clock::now() + timeout, timeout); }

  Clock::time_point at() const { return at_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  bool passed() const { return Clock::now() >= at_; }
  std::chrono::nanoseconds remaining() const {
    return std::max(std::chrono::nanoseconds::zero(),
                    std::chrono::duration_cast<std::chrono::nanoseconds>(at_ - Clock::now()));
  }

 private:
  Deadline(Clock::time_point at, std::chrono::milliseconds timeout) : at_(at), timeout_(timeout) {}

  Clock::time_point at_;
  std::chrono::milliseconds timeout_;
};

}  // namespace tessera::comm
