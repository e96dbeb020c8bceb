#pragma once

#include <tessera/core/descriptor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

namespace tessera::checkpoints {

/// An extent of a file in the page cache, without a copy of it.
///
/// Note [Views of files]
/// With read(), the kernel copies the bytes to memory, and they are read once more for their checksum. The bytes of a
/// view are checked and copied to their destination in one pass, past the caches of the processor, which takes two
/// thirds of the time. This holds for bytes in the page cache; a disk is read faster by read(), which fetches ahead in
/// long extents. The risk of mapped files is that a fault of the disk becomes a signal that ends the process. So the
/// system is first asked to bring all pages of a view, which reports a fault; then there is no view, and read() throws
/// the reason. What remains is that somebody shortens a file of a complete step in the very millisecond in which a view
/// of it is copied.
class FileView {
 public:
  /// Nothing where the page cache does not hold all of it, or the system cannot map it.
  static std::optional<FileView> of(int file, std::uint64_t offset, std::size_t num_bytes);

  FileView(FileView&& other) noexcept;
  FileView& operator=(FileView&& other) noexcept;
  ~FileView();

  /// Whether it holds these bytes of the file.
  bool holds(std::uint64_t offset, std::size_t num_bytes) const;
  /// Requires: it holds them.
  std::span<const std::byte> bytes(std::uint64_t offset, std::size_t num_bytes) const;

 private:
  FileView(std::uint64_t begin, std::span<std::byte> pages) : begin_(begin), pages_(pages) {}

  std::uint64_t begin_;  // in the file
  std::span<std::byte> pages_;
};

/// How many pages of this extent of a file the page cache holds. None where the system has no such call or refuses it.
std::optional<std::uint64_t> num_cached_pages(int file, std::uint64_t offset, std::uint64_t num_bytes);

/// How many pages these bytes lie in.
std::uint64_t num_pages(std::uint64_t offset, std::uint64_t num_bytes);

/// Whether the page cache holds all of these mapped pages, for systems without that call. Ten times as slow; for files
/// of other users the system may say yes regardless.
bool is_cached(void* pages, std::size_t num_bytes);

/// A regular file, open for reading at any place. Thread-safety: all members.
class FileReader {
 public:
  /// Throws StorageError when it is no regular file or cannot be read.
  explicit FileReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// The size of the file when it was opened.
  std::uint64_t num_bytes() const { return num_bytes_; }

  /// Blocks: for the disk. Throws StorageError when the disk fails or the file ends before.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

  /// None when the caller must use read() instead, which also reports what is wrong.
  std::optional<FileView> view(std::uint64_t offset, std::size_t num_bytes) const {
    return FileView::of(file_.get(), offset, num_bytes);
  }

  /// Whether the page cache holds less than half of this extent, as far as the system reports it.
  bool is_mostly_on_disk(std::uint64_t offset, std::uint64_t num_bytes) const;

  /// The same file, even if its name is gone, opened for reading with other flags. None where the system refuses.
  Descriptor open_again(int flags) const;

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace tessera::checkpoints
