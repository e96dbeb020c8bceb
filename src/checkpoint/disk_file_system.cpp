#include "checkpoint/disk_file_system.h"

#include <tessera/core/descriptor.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "checkpoint/direct_writer.h"
#include "checkpoint/disk_error.h"
#include "checkpoint/disk_file.h"

namespace tessera::checkpoints {
namespace {

namespace fs = std::filesystem;

/// Passes on lines of which the reason, behind the first colon, is new.
std::function<void(const std::string&)> once_a_reason(std::function<void(const std::string&)> tell) {
  if (!tell) return nullptr;
  struct Told {
    std::mutex mutex;
    std::set<std::string> reasons;
  };
  return [tell = std::move(tell), told = std::make_shared<Told>()](const std::string& line) {
    {
      const std::lock_guard lock(told->mutex);
      if (!told->reasons.insert(line.substr(std::min(line.size(), line.find(": ")))).second) return;
    }
    tell(line);
  };
}

/// Sets room aside: a full disk is known before a byte is written. Asks first: the system would take all that is
/// free before it says that this is not enough, and others would see a full disk meanwhile.
int set_length(int file, std::uint64_t num_bytes) {
  if (num_bytes == 0) return 0;
  struct statvfs found{};
  if (fstatvfs(file, &found) == 0 && found.f_blocks > 0 &&
      num_bytes / found.f_frsize > static_cast<std::uint64_t>(found.f_bfree)) {
    return ENOSPC;
  }
  const auto length = static_cast<off_t>(num_bytes);
  int result = 0;
  do {
    result = fallocate(file, 0, 0, length);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) result = ftruncate(file, length);
  return result == 0 ? 0 : errno;
}

}  // namespace

DiskFileSystem::DiskFileSystem(DiskOptions options) : options_(std::move(options)) {
  options_.tell = once_a_reason(std::move(options_.tell));
}

FileSystem& FileSystem::disk() {
  static DiskFileSystem files;
  return files;
}

void write_new_file(FileSystem& files, const fs::path& path, std::string_view text) {
  const std::unique_ptr<OutputFile> file = files.create(path, text.size());
  file->write({{0, std::as_bytes(std::span(text))}});
  file->sync();
}

std::shared_ptr<DirectWriters> DiskFileSystem::writers() {
  if (!options_.direct) return nullptr;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<DirectWriters> writers = writers_.lock();
  if (!writers) {
    writers = std::make_shared<DirectWriters>();
    writers_ = writers;
  }
  return writers;
}

bool DiskFileSystem::exists(const fs::path& path) {
  struct stat found{};
  if (lstat(path.c_str(), &found) == 0) return true;
  if (errno == ENOENT) return false;
  throw disk_error(path, "cannot be looked at", errno);
}

std::vector<std::string> DiskFileSystem::list(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) throw disk_error(folder, "cannot be listed", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> DiskFileSystem::read(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) throw disk_error(path, "cannot be read", errno);
  std::string text;
  std::array<char, 65536> buffer{};
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw disk_error(path, "cannot be read", errno);
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

void DiskFileSystem::make_folder(const fs::path& path) {
  if (mkdir(path.c_str(), 0777) != 0) throw disk_error(path, "cannot be made", errno);
}

std::unique_ptr<OutputFile> DiskFileSystem::create(const fs::path& path, std::uint64_t num_bytes) {
  Descriptor file(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
  if (!file) throw disk_error(path, "cannot be made", errno);
  if (const int error = set_length(file.get(), num_bytes); error != 0) {
    unlink(path.c_str());
    throw disk_error(path, "cannot get its room", error, num_bytes);
  }
  return std::make_unique<DiskFile>(path, std::move(file), writers(), options_.tell);
}

std::unique_ptr<OutputFile> DiskFileSystem::open(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) throw disk_error(path, "cannot be opened for writing", errno);
  return std::make_unique<DiskFile>(path, std::move(file), writers(), options_.tell);
}

void DiskFileSystem::sync_folder(const fs::path& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || fsync(folder.get()) != 0) throw disk_error(path, "cannot be brought to the disk", errno);
}

void DiskFileSystem::rename(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw disk_error(from, "cannot be renamed to " + to.filename().string(), errno);
  }
}

void DiskFileSystem::exchange(const fs::path& a, const fs::path& b, const fs::path& aside) {
  if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) {
    throw disk_error(a, "cannot be exchanged with " + b.filename().string(), errno);
  }
  // Else the power may go with the name of `b`, and without the one that `a` has so far.
  sync_folder(a.parent_path());
  rename(b, aside);
  rename(a, b);
}

void DiskFileSystem::remove_file(const fs::path& path) {
  if (unlink(path.c_str()) != 0) throw disk_error(path, "cannot be removed", errno);
}

void DiskFileSystem::remove_folder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw disk_error(path, "cannot be removed", error.value());
}

}  // namespace tessera::checkpoints
