#include "tokens/new_file.h"

#include <tessera/core/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tessera::tokens {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

}  // namespace

NewFile::NewFile(const std::filesystem::path& path) : path_(path), partial_(path) {
  partial_ += "." + std::to_string(getpid()) + ".partial";
  file_ = Descriptor(open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_) {
    const std::string why = errno == EEXIST ? "another writer of this process, or one that was killed, made it already"
                                            : std::strerror(errno);
    throw StorageError(partial_.string() + " cannot be made: " + why);
  }
}

NewFile::~NewFile() {
  if (!published_ && file_) unlink(partial_.c_str());
}

void NewFile::fail(const std::string& what) const {
  throw StorageError(partial_.string() + " cannot be " + what + ": " + std::strerror(errno));
}

void NewFile::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes) {
    write_all(bytes, num_written_);
    num_written_ += bytes.size();
  } else {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
}

void NewFile::overwrite(std::uint64_t offset, const std::string& text) {
  flush();
  write_all(std::as_bytes(std::span(text)), offset);
}

void NewFile::flush() {
  write_all(std::as_bytes(std::span(buffer_)), num_written_);
  num_written_ += buffer_.size();
  buffer_.clear();
}

void NewFile::write_all(std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("written");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void NewFile::sync() {
  flush();
  if (fsync(file_.get()) != 0) fail("written to disk");
}

void NewFile::publish() {
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail("renamed to " + path_.string());
  published_ = true;
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path place = folder.empty() ? "." : folder;
  const Descriptor opened(open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened || fsync(opened.get()) != 0) {
    throw StorageError("the folder " + place.string() + " cannot be written to disk: " + std::strerror(errno));
  }
}

}  // namespace tessera::tokens
