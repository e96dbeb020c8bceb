#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace tessera::store {

/// Starts a thread that receives no signals. They are for the threads of the program, which may wait for them.
inline std::thread start_without_signals(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

/// The point in time after `timeout`, or after a year, so that a long timeout does not overflow.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  constexpr std::chrono::hours kFarAway{24 * 365};
  return std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kFarAway);
}

/// Returns the time: the system's, or in a test the time that the test has set.
using TimeSource = std::function<std::chrono::steady_clock::time_point()>;

/// Note [Time that nobody saw]
/// A machine that stands still (a virtual one that is moved, a laptop that sleeps, a host that swaps) stops all its
/// processes. When they go on, every peer seems to have been silent for long, though it had no time to send anything.
/// So silence is measured in time during which this process could have received: the time by which a wait exceeds its
/// timeout was missed, and does not count.
class AwakeClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AwakeClock(TimeSource time = Clock::now) : time_(std::move(time)), last_wake_(time_()) {}

  Clock::time_point now() const { return time_() - missed_; }
  /// The time `awake` by the system's clock, if no time is missed until then.
  Clock::time_point real(Clock::time_point awake) const { return awake + missed_; }

  /// Call it after each wait, with the timeout of that wait. The work since the previous wait counts as waiting too,
  /// because the machine may have stood still then.
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
