#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>
#include <tessera/core/mapped_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace tessera {

MappedFile::MappedFile(const std::filesystem::path& path) : name_(path.string()) {
  const auto fail = [this] { throw StorageError(name_ + " cannot be read: " + std::strerror(errno)); };
  // A pipe would make open() wait for its other end.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail();
  struct stat found{};
  if (fstat(file.get(), &found) != 0) fail();
  if (!S_ISREG(found.st_mode)) throw StorageError(name_ + " is no regular file");
  const auto length = static_cast<std::size_t>(found.st_size);
  if (length == 0) return;  // nothing can be mapped then
  void* const start = mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (start == MAP_FAILED) fail();
  bytes_ = {static_cast<const std::byte*>(start), length};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace tessera
