#pragma once

#include <tessera/core/descriptor.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::observe {

/// A file that grows. Its folder is made when it is not there.
class OutputFile {
 public:
  enum class Mode { kAppend, kReplace };

  /// Throws StorageError when it cannot be made.
  OutputFile(std::filesystem::path path, Mode mode);

  /// Writes all of it. Throws StorageError, having taken back what was written of it where that is possible: files of
  /// records should end with a whole one.
  void write(std::string_view bytes);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

}  // namespace tessera::observe
