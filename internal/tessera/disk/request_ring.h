#pragma once

#include <cstddef>
#include <cstdint>
#include <liburing.h>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace tessera::disk {

/// The most that direct_alignment() returns.
inline constexpr std::size_t kMostAlignment = std::size_t{64} << 10;

/// The alignment that direct I/O on a file requires of offsets, lengths and memory: a power of two, at least a page.
std::size_t direct_alignment(int file);

/// A pool of objects that are slow to make and serve one thread at a time. It holds as many as threads have used at
/// once. `T::make(error)` makes one, `is_usable()` says whether it can be used again.
/// Thread-safety: all members may be called from any thread.
template <typename T>
class IdlePool {
 public:
  /// An idle one, or a new one. Null, with the system's error, when none can be made.
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

/// Several requests to the disk at a time, and buffers with the alignment that direct I/O requires.
/// Thread-safety: none.
class RequestRing {
 public:
  struct Completion {
    void* owner;
    int result;  // bytes, or the system's error below 0
  };

  /// Null, with the system's error in `error`, where the system gives no ring. There may be as many requests as
  /// buffers. With `buffer_bytes` 0 all memory is the caller's.
  static std::unique_ptr<RequestRing> make(std::size_t num_buffers, std::size_t buffer_bytes, int& error);
  /// Requires: no request is under way.
  ~RequestRing();
  RequestRing(const RequestRing&) = delete;
  RequestRing& operator=(const RequestRing&) = delete;

  std::byte* buffer(std::size_t index) const { return memory_ + index * buffer_bytes_; }
  std::size_t num_under_way() const { return num_under_way_; }
  /// False when it must not be used again.
  bool is_usable() const { return is_usable_; }

  /// These return 0 or the system's error. Requires: the memory stays valid until the request is complete.
  int read(int file, std::span<std::byte> into, std::uint64_t offset, void* owner);
  int write(int file, std::span<const std::byte> bytes, std::uint64_t offset, void* owner);

  /// Blocks: until one is complete. Requires: one is under way.
  Completion wait();

 private:
  RequestRing() = default;
  int submit();

  io_uring ring_{};
  bool has_ring_ = false;
  bool is_usable_ = true;
  std::byte* memory_ = nullptr;
  std::size_t num_buffers_ = 0;
  std::size_t buffer_bytes_ = 0;
  std::size_t num_under_way_ = 0;
};

/// Whether the same request may be made once more.
bool is_for_another_try(int result);

}  // namespace tessera::disk
