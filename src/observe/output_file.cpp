#include "observe/output_file.h"

#include <tessera/core/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace tessera::observe {
namespace {

Descriptor open_for_writing(const std::filesystem::path& path, OutputFile::Mode mode) {
  std::error_code fault;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), fault);
  if (fault) {
    throw StorageError("the folder " + path.parent_path().string() + " cannot be made: " + fault.message());
  }
  constexpr mode_t kMode = 0666;  // as the umask allows
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (mode == OutputFile::Mode::kAppend ? O_APPEND : O_TRUNC);
  Descriptor file(open(path.c_str(), flags, kMode));
  if (!file) throw StorageError("the file " + path.string() + " cannot be made: " + std::strerror(errno));
  return file;
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path, Mode mode)
    : path_(std::move(path)), file_(open_for_writing(path_, mode)) {}

void OutputFile::write(std::string_view bytes) {
  const off_t start = lseek(file_.get(), 0, SEEK_END);
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      const std::string why = std::strerror(errno);
      const bool is_whole = start >= 0 && ftruncate(file_.get(), start) == 0;
      throw StorageError("the file " + path_.string() + " cannot be written any further: " + why +
                         (is_whole ? "" : "; its last record is not whole"));
    }
  }
}

}  // namespace tessera::observe
