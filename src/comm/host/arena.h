#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace tessera::comm {

/// Large tensors begin on this boundary, so that the kernel may back them with huge pages.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// One rank's part of the host segment, handed out in whole pages. Pages are reserved when allocated, so that a lack of
/// memory is an error and not a signal, and returned to the system when freed.
/// Thread-safety: all functions.
class Arena {
 public:
  /// `memory` is where the file's bytes [begin, begin + num_bytes) are mapped.
  Arena(int fd, std::byte* memory, std::size_t begin, std::size_t num_bytes);

  /// Throws StorageError, with the sizes, when the system has no such memory.
  std::byte* allocate(std::size_t num_bytes);
  void free(std::byte* memory) noexcept;
  /// From now on free() leaves the pages in place for the ranks that still use them. The system gets them back when no
  /// rank maps the file any more.
  void leave_pages() noexcept;
  /// In use now.
  std::size_t used_bytes() const;

 private:
  std::size_t take_range(std::size_t num_bytes);
  void return_range(std::size_t begin, std::size_t num_bytes);

  int fd_;
  std::byte* memory_;
  std::size_t begin_;
  std::size_t capacity_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_ranges_;  // begin to length
  std::map<std::size_t, std::size_t> used_ranges_;
  std::size_t used_bytes_ = 0;
  bool leaves_pages_ = false;
};

}  // namespace tessera::comm
