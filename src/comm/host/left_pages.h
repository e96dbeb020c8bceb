#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace tessera::comm {

/// Pages that their owner has let go while other ranks still use them. Only the owner can return them to the system, so
/// they wait here for the last user.
/// Thread-safety: all functions.
class LeftPages {
 public:
  using Users = std::atomic<std::int32_t>;

  /// `users` counts who still uses them, and may lie in the pages.
  void add(std::shared_ptr<std::byte> pages, const Users& users) {
    const std::lock_guard lock(mutex_);
    pages_.push_back({std::move(pages), &users});
  }
  /// Frees what nobody uses any more.
  void collect() {
    const std::lock_guard lock(mutex_);
    std::erase_if(pages_, [](const Left& left) { return left.users->load(std::memory_order_acquire) == 0; });
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    pages_.clear();
  }

 private:
  struct Left {
    std::shared_ptr<std::byte> pages;
    const Users* users;
  };

  std::mutex mutex_;
  std::vector<Left> pages_;
};

}  // namespace tessera::comm
