#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace tessera::checkpoints {

/// A whole file as memory that can only be read. A page is read from the disk when it is first looked at.
/// Requires: nobody shortens the file meanwhile; the system ends a process that reads beyond its end.
class MappedFile {
 public:
  /// Throws StorageError when it is no regular file or cannot be read.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace tessera::checkpoints
