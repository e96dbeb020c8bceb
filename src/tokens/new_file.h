#pragma once

#include <tessera/core/descriptor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace tessera::tokens {

/// A file that appears under its name only when it is complete. Until then it is NAME.PROCESS.partial beside it, and
/// vanishes with the object.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Through a buffer.
  void append(std::span<const std::byte> bytes);
  void append(const std::string& text) { append(std::as_bytes(std::span(text))); }
  /// Over what was appended before.
  void overwrite(std::uint64_t offset, const std::string& text);
  /// Everything is on disk after this; nothing can be appended any more.
  void sync();
  /// Requires: sync(). Replaces what has the name.
  void publish();

 private:
  void write_all(std::span<const std::byte> bytes, std::uint64_t offset);
  void flush();
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  Descriptor file_;
  std::string buffer_;
  std::uint64_t num_written_ = 0;
  bool published_ = false;
};

/// A rename lasts only once its folder is on disk too.
void sync_folder(const std::filesystem::path& folder);

}  // namespace tessera::tokens
