#include <tessera/core/atomic_file.h>
#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>
#include <tessera/core/mapped_file.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <utility>

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

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what, int error) {
  throw StorageError(path.string() + " " + what + ": " + std::strerror(error));
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Another name in the same folder: a rename is atomic only inside one file system. The dot hides it from listings.
std::filesystem::path draft_name(const std::filesystem::path& path) {
  std::random_device device;
  const std::string tag = std::to_string(getpid()) + "-" + std::to_string(device());
  return folder_of(path) / ("." + path.filename().string() + "." + tag + ".tmp");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  if (!path_.has_filename()) throw ConfigError("\"" + path_.string() + "\" is no name of a file");
  std::filesystem::path draft = draft_name(path_);
  file_ = Descriptor(open(draft.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666));
  if (!file_) fail(path_, "cannot be written", errno);
  draft_ = std::move(draft);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)), draft_(std::move(other.draft_)), file_(std::move(other.file_)) {
  other.draft_.clear();
}

AtomicFile::~AtomicFile() {
  if (!draft_.empty()) unlink(draft_.c_str());
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!file_) throw InternalError(path_.string() + " is written to after commit()");
  while (!bytes.empty()) {
    const ssize_t count = pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, "cannot be written at byte " + std::to_string(offset), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void AtomicFile::sync() {
  if (!file_) throw InternalError(path_.string() + " is brought to the disk after it was published");
  if (fsync(file_.get()) != 0) fail(path_, "cannot be brought to the disk", errno);
}

void AtomicFile::publish() {
  if (!file_) throw InternalError(path_.string() + " is published twice");
  file_.reset();  // fsync has reported the errors that close could
  if (rename(draft_.c_str(), path_.c_str()) != 0) fail(path_, "cannot be given its name", errno);
  draft_.clear();
}

void AtomicFile::commit() {
  sync();
  publish();
  sync_folder(path_.parent_path());
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path place = folder.empty() ? "." : folder;
  const Descriptor opened(open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened || fsync(opened.get()) != 0) fail(place, "cannot be brought to the disk", errno);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace tessera
