#pragma once

#include <tessera/core/atomic_file.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace tessera::tokens {

/// A file that is written from its beginning to its end, through a buffer. It appears as an AtomicFile does.
class AppendedFile {
 public:
  explicit AppendedFile(const std::filesystem::path& path) : file_(path) {}

  void append(std::span<const std::byte> bytes);
  void append(const std::string& text) { append(std::as_bytes(std::span(text))); }
  /// Over what was appended before.
  void overwrite(std::uint64_t offset, const std::string& text);
  /// Everything is on disk after this.
  void sync();
  /// Requires: sync(). Replaces what has the name.
  void publish() { file_.publish(); }

 private:
  void flush();

  AtomicFile file_;
  std::string buffer_;
  std::uint64_t num_written_ = 0;
};

}  // namespace tessera::tokens
