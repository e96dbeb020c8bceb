#include "checkpoint/disk_file.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "checkpoint/direct_alignment.h"
#include "checkpoint/disk_error.h"

namespace tessera::checkpoints {
namespace {

// Note [Direct and buffered bytes]
// A checkpoint is written once and read after a restart, if ever: to copy it into the page cache costs time of the
// processor and the memory that training could use, and the disk stands idle until the first pages are sent to it. So
// long stretches are written with O_DIRECT, which wants whole blocks; what is left at their ends goes through the page
// cache. Several ranks write into one file, and their slices meet inside a block. A page of the cache is written back
// as a whole: if a part of it had been written directly meanwhile, old bytes would replace new ones. Therefore bytes go
// directly only if all of their page and of their file system's block is of one stretch; the pages where stretches
// meet are buffered by all of them, and the system keeps one copy of a page for all processes.

/// Of one call that goes through the page cache.
constexpr std::size_t kBufferedBytes = std::size_t{4} << 20;

/// As many as one call takes: whole pieces of about kBufferedBytes together, at least one.
std::size_t num_pieces_of_call(std::span<const iovec> pieces) {
  constexpr std::size_t kMostPieces = 64;
  std::size_t count = 1;
  std::size_t num_bytes = pieces.front().iov_len;
  while (count < std::min(kMostPieces, pieces.size()) && num_bytes + pieces[count].iov_len <= kBufferedBytes) {
    num_bytes += pieces[count++].iov_len;
  }
  return count;
}

/// What says that it cannot be done this way, rather than that the disk failed.
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
  alignment_ = direct_alignment(file_.get());
  direct_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  is_direct_ = static_cast<bool>(direct_);
  if (!direct_) refuse_direct("opening it for direct I/O", errno);
}

void DiskFile::refuse_direct(const std::string& what, int error) {
  is_direct_ = false;
  if (tell_) tell_(path_.string() + " is written through the page cache: " + what + ": " + std::strerror(error));
}

void DiskFile::write(std::vector<WriteRange> ranges) {
  for (const WriteStretch& stretch : join_ranges(std::move(ranges))) {
    if (!is_direct_) {
      write_buffered(stretch);
      continue;
    }
    const AlignedStretch parts = align(stretch, alignment_, kLeastDirect);
    write_buffered(parts.head);
    if (!write_direct(parts.middle)) write_buffered(parts.middle);
    write_buffered(parts.tail);
  }
}

bool DiskFile::write_direct(const WriteStretch& stretch) {
  if (stretch.num_bytes == 0) return true;
  int error = 0;
  std::unique_ptr<DirectWriter> writer = writers_->take(error);
  if (!writer) {
    refuse_direct("io_uring", error);
    return false;
  }
  error = writer->write(direct_.get(), stretch, alignment_);
  writers_->give_back(std::move(writer));
  if (error == 0) return true;
  if (!is_refusal(error)) {
    throw disk_error(path_, "cannot be written from byte " + std::to_string(stretch.offset) + " on", error,
                     stretch.num_bytes);
  }
  refuse_direct("direct I/O", error);
  return false;
}

void DiskFile::write_buffered(const WriteStretch& stretch) {
  std::vector<iovec> pieces;
  for (std::span<const std::byte> piece : stretch.pieces) {
    for (; !piece.empty(); piece = piece.subspan(std::min(piece.size(), kBufferedBytes))) {
      pieces.push_back({const_cast<std::byte*>(piece.data()), std::min(piece.size(), kBufferedBytes)});
    }
  }
  std::uint64_t offset = stretch.offset;
  for (std::size_t first = 0; first < pieces.size();) {
    const std::size_t count = num_pieces_of_call(std::span(pieces).subspan(first));
    const ssize_t result = pwritev(file_.get(), &pieces[first], static_cast<int>(count), static_cast<off_t>(offset));
    if (result < 0 && errno == EINTR) continue;
    if (result <= 0) {
      throw disk_error(path_, "cannot be written from byte " + std::to_string(offset) + " on", result < 0 ? errno : EIO,
                       stretch.end() - offset);
    }
    auto taken = static_cast<std::size_t>(result);
    // The disk begins now, rather than at sync(). Where that cannot be, nothing is lost.
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

}  // namespace tessera::checkpoints
