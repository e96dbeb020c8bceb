#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera::checkpoints {

/// Things that take long to make and serve one thread at a time: as many as threads use at once. `T::make(error)` makes
/// one, `is_usable()` says whether it can serve again.
/// Thread-safety: all members may be called from any thread.
template <typename T>
class IdlePool {
 public:
  /// An idle one, or a new one. Null, with the system's error, when there is none to be had.
  std::unique_ptr<T> take(int& error) {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<T> one = std::move(idle_.back());
        idle_.pop_back();
        return one;
      }
    }
    return T::make(error);
  }

  void give_back(std::unique_ptr<T> one) {
    if (!one->is_usable()) return;
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(one));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> idle_;
};

}  // namespace tessera::checkpoints
