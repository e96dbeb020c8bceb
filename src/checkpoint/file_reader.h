#pragma once

#include <tessera/core/descriptor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "checkpoint/file_view.h"

namespace tessera::checkpoints {

/// A regular file, open for reading at any place. Thread-safety: all members.
class FileReader {
 public:
  /// Throws StorageError when it is no regular file or cannot be read.
  explicit FileReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// When it was opened.
  std::uint64_t num_bytes() const { return num_bytes_; }

  /// Blocks: for the disk. Throws StorageError when the disk fails or the file ends before.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

  /// Nothing where only read() will do, or tell what is wrong.
  std::optional<FileView> view(std::uint64_t offset, std::size_t num_bytes) const {
    return FileView::of(file_.get(), offset, num_bytes);
  }

  /// Whether the page cache holds less than half of it, as far as the system tells.
  bool is_mostly_on_disk(std::uint64_t offset, std::uint64_t num_bytes) const;

  /// The same file, even if its name is gone, opened for reading with other flags. None where the system refuses.
  Descriptor open_again(int flags) const;

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace tessera::checkpoints
