#pragma once

#include <tessera/core/descriptor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace tessera::offload {

/// Files without names, one in each folder, that together are one row of bytes: stripe by stripe in turns, so that
/// disks work at the same time. A process that ends in whatever way leaves nothing behind.
/// Thread-safety: reserve() from one thread at a time; everything else from any.
class SwapFiles {
 public:
  /// Of neighbouring bytes this many lie in one file.
  static constexpr std::uint64_t kStripeBytes = std::uint64_t{4} << 20;

  /// Makes folders that do not exist. Throws StorageError.
  explicit SwapFiles(std::vector<std::filesystem::path> folders);

  /// Room on the disks for the bytes before `capacity`. Throws StorageError, with what there is, where a disk has none.
  void reserve(std::uint64_t capacity);

  /// Bytes that lie side by side in one file.
  struct Place {
    std::size_t file;  ///< which of them
    std::uint64_t offset;
    std::size_t num_bytes;
  };
  /// Where the bytes from `offset` on lie, at most `num_bytes` of them.
  Place place_of(std::uint64_t offset, std::size_t num_bytes) const;

  int descriptor(std::size_t file) const { return files_[file].get(); }
  const std::filesystem::path& folder(std::size_t file) const { return folders_[file]; }
  /// Whether all are read and written past the page cache.
  bool is_direct() const { return is_direct_; }
  /// That transfers need, of offsets, lengths and memory: a power of two, at least a page.
  std::size_t alignment() const { return alignment_; }

 private:
  std::vector<std::filesystem::path> folders_;
  std::vector<Descriptor> files_;
  bool is_direct_ = true;
  std::size_t alignment_ = 0;
  std::uint64_t capacity_ = 0;
};

}  // namespace tessera::offload
