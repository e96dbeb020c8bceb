#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace tessera::checkpoints {

/// A stretch of a file in the page cache, without a copy of it.
///
/// Note [Views of files]
/// Bytes that are read() are written to memory by the kernel, and read once more for their checksum. Those of a view
/// are checked and brought to their place in one go, past the caches: in two thirds of the time. That is so for bytes
/// that the page cache holds; a disk is read faster by read(), which fetches ahead in long stretches. What speaks
/// against mapped files is that a disk's fault becomes a signal that ends the process. So the system is asked to bring
/// all pages of a view first, which tells of a fault; then there is no view, and read() says what is wrong. What
/// remains is that somebody cuts a file of a complete step short in the very millisecond in which a view of it is
/// copied.
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

}  // namespace tessera::checkpoints
