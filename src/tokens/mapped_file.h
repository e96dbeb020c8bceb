#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tessera::tokens {

/// A whole file in memory, to read. The pages come from the system's cache when they are touched.
class MappedFile {
 public:
  /// Throws StorageError when it cannot be read, ConfigError when it is no regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& name() const { return name_; }
  std::span<const std::byte> bytes() const { return {data_, num_bytes_}; }
  /// The same as text.
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), num_bytes_}; }

 private:
  std::string name_;
  const std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

}  // namespace tessera::tokens
