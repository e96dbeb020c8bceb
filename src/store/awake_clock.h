#pragma once

#include <chrono>
#include <functional>
#include <utility>

namespace tessera::store {

/// Tells the time: that of the system, or in a test the time that the test has made it.
using TimeSource = std::function<std::chrono::steady_clock::time_point()>;

/// Note [Time that nobody saw]
/// A machine that stands still (a virtual one that is moved, a laptop that sleeps, a host that swaps) stops all its
/// processes. When they go on, everybody seems to have been silent for long, and has not had the time to say anything.
/// So silence is measured in time during which this process could have listened: a wait that took longer than it was
/// to last has not been slept but missed.
class AwakeClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AwakeClock(TimeSource time = Clock::now) : time_(std::move(time)), last_wake_(time_()) {}

  Clock::time_point now() const { return time_() - missed_; }
  /// When that will be, by the clock of the system, if nothing is missed until then.
  Clock::time_point real(Clock::time_point awake) const { return awake + missed_; }

  /// After each wait, with what it was to last at most. What was done since the last one counts as waiting too: the
  /// machine may have stood still then.
  void woke(Clock::duration most) {
    constexpr std::chrono::milliseconds kTolerated{200};
    const auto time = time_();
    const auto late = time - last_wake_ - most;
    if (late > kTolerated) missed_ += late;
    last_wake_ = time;
  }

 private:
  TimeSource time_;
  Clock::time_point last_wake_;
  Clock::duration missed_{0};
};

}  // namespace tessera::store
