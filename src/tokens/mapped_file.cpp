#include "tokens/mapped_file.h"

#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace tessera::tokens {

MappedFile::MappedFile(const std::filesystem::path& path) : name_(path.string()) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found{};
  if (!file || fstat(file.get(), &found) != 0) {
    throw StorageError(name_ + " cannot be read: " + std::strerror(errno));
  }
  if (!S_ISREG(found.st_mode)) throw ConfigError(name_ + " is no regular file; only those can be mapped");
  num_bytes_ = static_cast<std::size_t>(found.st_size);
  if (num_bytes_ == 0) return;  // nothing can be mapped then
  void* mapped = mmap(nullptr, num_bytes_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) throw StorageError(name_ + " cannot be mapped: " + std::strerror(errno));
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), num_bytes_);  // NOLINT: munmap takes no const
}

}  // namespace tessera::tokens
