#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// A whole file as read-only memory. A page is read from the disk when it is first accessed.
/// Requires: nobody shortens the file meanwhile; the system ends a process that reads beyond its end.
class MappedFile {
 public:
  /// Throws StorageError when it is no regular file or cannot be read.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& name() const { return name_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  /// The same as text.
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  std::string name_;
  std::span<const std::byte> bytes_;
};

}  // namespace tessera
