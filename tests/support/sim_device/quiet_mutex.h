#pragma once

#include <atomic>

namespace tessera::testing::sim {

/// A mutex from which host threads learn nothing (Note [Host threads that learn]): those of the simulation itself, in
/// whose place a real device has none.
class QuietMutex {
 public:
  void lock() {
    int free = 0;
    if (state_.compare_exchange_strong(free, kTaken, std::memory_order_acquire)) return;
    while (state_.exchange(kAwaited, std::memory_order_acquire) != 0) state_.wait(kAwaited);
  }
  void unlock() {
    if (state_.exchange(0, std::memory_order_release) == kAwaited) state_.notify_one();
  }

 private:
  static constexpr int kTaken = 1;
  static constexpr int kAwaited = 2;
  std::atomic<int> state_{0};
};

}  // namespace tessera::testing::sim
