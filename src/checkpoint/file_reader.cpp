#include "checkpoint/file_reader.h"

#include <tessera/core/error.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "checkpoint/page_cache.h"

namespace tessera::checkpoints {

FileReader::FileReader(std::filesystem::path path) : path_(std::move(path)) {
  const auto fail = [this] { throw StorageError(path_.string() + " cannot be read: " + std::strerror(errno)); };
  // A pipe would make open() wait for its other end.
  file_ = Descriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file_) fail();
  struct stat found{};
  if (fstat(file_.get(), &found) != 0) fail();
  if (!S_ISREG(found.st_mode)) throw StorageError(path_.string() + " is no regular file");
  num_bytes_ = static_cast<std::uint64_t>(found.st_size);
  // The system fetches twice as much ahead then. Asking it for each stretch (WILLNEED) was slower, cold and warm: then
  // it keeps every page by itself, where reading on makes it take larger and larger ones.
  posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

void FileReader::read(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t count = pread(file_.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw StorageError(path_.string() + " cannot be read at byte " + std::to_string(offset) + ": " +
                         (count < 0 ? std::strerror(errno) : "it was cut short after it was opened"));
    }
    into = into.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

bool FileReader::is_mostly_on_disk(std::uint64_t offset, std::uint64_t num_bytes) const {
  return 2 * num_cached_pages(file_.get(), offset, num_bytes).value_or(0) < num_pages(offset, num_bytes);
}

Descriptor FileReader::open_again(int flags) const {
  const std::string name = "/proc/self/fd/" + std::to_string(file_.get());
  return Descriptor(open(name.c_str(), O_RDONLY | O_CLOEXEC | flags));
}

}  // namespace tessera::checkpoints
