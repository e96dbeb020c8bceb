#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera::comm {

/// Pages that their owner has released while other ranks still use them. Only the owner can return them to the system,
/// so they wait here for the last user.
/// Thread-safety: all functions.
class LeftPages {
 public:
  using Users = std::atomic<std::int32_t>;

  /// `users` counts the ranks that still use the pages, and may itself lie in them.
  void add(std::shared_ptr<std::byte> pages, const Users& users) {
    const std::lock_guard lock(mutex_);
    pages_.push_back({std::move(pages), &users});
  }
  /// Frees the pages that no rank uses any more.
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

/// One rank's use of pages that several share. The end of the owner's use frees them if it is the last; otherwise it
/// moves them to `left`.
class PageUse {
 public:
  /// `owned`: the pages on the rank that owns them, null on the others. Requires: `users` counts this use already.
  PageUse(LeftPages::Users& users, std::shared_ptr<std::byte> owned, std::shared_ptr<LeftPages> left)
      : users_(users), owned_(std::move(owned)), left_(std::move(left)) {}
  PageUse(const PageUse&) = delete;
  PageUse& operator=(const PageUse&) = delete;
  ~PageUse() {
    const bool is_last = users_.fetch_sub(1, std::memory_order_acq_rel) == 1;
    if (owned_ && !is_last) left_->add(std::move(owned_), users_);
  }

 private:
  LeftPages::Users& users_;
  std::shared_ptr<std::byte> owned_;
  std::shared_ptr<LeftPages> left_;
};

}  // namespace tessera::comm
