#include "checkpoint/disk/disk_file_system.h"

#include <tessera/core/descriptor.h>
#include <tessera/disk/request_ring.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <span>
#include <string_view>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "checkpoint/disk/direct_writer.h"
#include "checkpoint/disk/disk_error.h"

namespace tessera::checkpoints {
namespace {

// Note [Direct and buffered bytes]
// A checkpoint is written once and read after a restart, if ever. Copying it into the page cache costs processor time
// and memory that training could use, and the disk is idle until the first pages are sent to it. So long extents are
// written with O_DIRECT, which requires whole blocks; the rest at their ends goes through the page cache. Several ranks
// write into one file, and their slices meet inside a block. The system writes a cached page back as a whole: if a part
// of it had been written directly meanwhile, old bytes would replace new ones. Therefore bytes are written directly
// only if their whole page and their whole file system block belong to one extent. All ranks write the pages where
// extents meet through the page cache, which has one copy of a page for all processes.

/// The size of one write through the page cache.
constexpr std::size_t kBufferedBytes = std::size_t{4} << 20;

/// How many pieces one call takes: at least one, and more as long as they fit into kBufferedBytes.
std::size_t num_pieces_of_call(std::span<const iovec> pieces) {
  constexpr std::size_t kMostPieces = 64;
  std::size_t count = 1;
  std::size_t num_bytes = pieces.front().iov_len;
  while (count < std::min(kMostPieces, pieces.size()) && num_bytes + pieces[count].iov_len <= kBufferedBytes) {
    num_bytes += pieces[count++].iov_len;
  }
  return count;
}

/// Whether an error means that direct I/O is not possible, rather than that the disk failed.
bool is_refusal(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS || error == EPERM || error == ENOMEM;
}

}  // namespace

DiskFile::DiskFile(std::filesystem::path path, Descriptor file, std::shared_ptr<DirectWriters> writers,
                   std::function<void(const std::string&)> tell)
    : path_(std::move(path)), file_(std::move(file)), writers_(std::move(writers)), tell_(std::move(tell)) {
  if (writers_) open_direct();
}

void DiskFile::open_direct() {
  alignment_ = disk::direct_alignment(file_.get());
  direct_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  is_direct_ = static_cast<bool>(direct_);
  if (!direct_) refuse_direct("opening it for direct I/O", errno);
}

void DiskFile::refuse_direct(const std::string& what, int error) {
  is_direct_ = false;
  if (tell_) tell_(path_.string() + " is written through the page cache: " + what + ": " + std::strerror(error));
}

void DiskFile::write(std::vector<WriteRange> ranges) {
  for (const WriteExtent& extent : join_ranges(std::move(ranges))) {
    if (!is_direct_) {
      write_buffered(extent);
      continue;
    }
    const AlignedExtent parts = align(extent, alignment_, kLeastDirect);
    write_buffered(parts.head);
    if (!write_direct(parts.middle)) write_buffered(parts.middle);
    write_buffered(parts.tail);
  }
}

bool DiskFile::write_direct(const WriteExtent& extent) {
  if (extent.num_bytes == 0) return true;
  int error = 0;
  std::unique_ptr<DirectWriter> writer = writers_->take(error);
  if (!writer) {
    refuse_direct("io_uring", error);
    return false;
  }
  error = writer->write(direct_.get(), extent, alignment_);
  writers_->give_back(std::move(writer));
  if (error == 0) return true;
  if (!is_refusal(error)) {
    throw disk_error(path_, "cannot be written from byte " + std::to_string(extent.offset) + " on", error,
                     extent.num_bytes);
  }
  refuse_direct("direct I/O", error);
  return false;
}

void DiskFile::write_buffered(const WriteExtent& extent) {
  std::vector<iovec> pieces;
  for (std::span<const std::byte> piece : extent.pieces) {
    for (; !piece.empty(); piece = piece.subspan(std::min(piece.size(), kBufferedBytes))) {
      pieces.push_back({const_cast<std::byte*>(piece.data()), std::min(piece.size(), kBufferedBytes)});
    }
  }
  std::uint64_t offset = extent.offset;
  for (std::size_t first = 0; first < pieces.size();) {
    const std::size_t count = num_pieces_of_call(std::span(pieces).subspan(first));
    const ssize_t result = pwritev(file_.get(), &pieces[first], static_cast<int>(count), static_cast<off_t>(offset));
    if (result < 0 && errno == EINTR) continue;
    if (result <= 0) {
      throw disk_error(path_, "cannot be written from byte " + std::to_string(offset) + " on", result < 0 ? errno : EIO,
                       extent.end() - offset);
    }
    auto taken = static_cast<std::size_t>(result);
    // Makes the disk begin now, rather than at sync(). Nothing is lost if this fails.
    if (taken >= kLeastDirect) {
      sync_file_range(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(taken), SYNC_FILE_RANGE_WRITE);
    }
    offset += taken;
    for (; first < pieces.size() && taken >= pieces[first].iov_len; ++first) taken -= pieces[first].iov_len;
    if (taken == 0) continue;
    pieces[first].iov_base = static_cast<std::byte*>(pieces[first].iov_base) + taken;
    pieces[first].iov_len -= taken;
  }
}

void DiskFile::sync() {
  while (fsync(file_.get()) != 0) {
    if (errno != EINTR) throw disk_error(path_, "cannot be brought to the disk", errno);
  }
}

namespace {

namespace fs = std::filesystem;

/// Passes on a line only if its reason, the text after the first colon, is new.
std::function<void(const std::string&)> once_a_reason(std::function<void(const std::string&)> tell) {
  if (!tell) return nullptr;
  struct Reported {
    std::mutex mutex;
    std::set<std::string> reasons;
  };
  return [tell = std::move(tell), reported = std::make_shared<Reported>()](const std::string& line) {
    {
      const std::lock_guard lock(reported->mutex);
      if (!reported->reasons.insert(line.substr(std::min(line.size(), line.find(": ")))).second) return;
    }
    tell(line);
  };
}

/// Reserves space, so that a full disk is noticed before a byte is written. Checks the free space first: fallocate()
/// would take all of it before it fails, and others would see a full disk meanwhile.
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
  // Without this, a power failure could leave the disk with neither the name `b` nor the present name of `a`.
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
