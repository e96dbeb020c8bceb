#include "checkpoint/load/file_reader.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tessera::checkpoints {
namespace {

#ifdef MADV_POPULATE_READ
constexpr int kBringPages = MADV_POPULATE_READ;
#else
constexpr int kBringPages = 22;  // a system may have it though its headers are older
#endif

}  // namespace

std::optional<FileView> FileView::of(int file, std::uint64_t offset, std::size_t num_bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = offset / page * page;
  const std::size_t length = num_bytes + static_cast<std::size_t>(offset - begin);
  const std::optional<std::uint64_t> num_cached = num_cached_pages(file, begin, length);
  if (num_cached && *num_cached < num_pages(begin, length)) return std::nullopt;
  void* const memory = mmap(nullptr, length, PROT_READ, MAP_SHARED, file, static_cast<off_t>(begin));
  if (memory == MAP_FAILED) return std::nullopt;
  FileView view(begin, {static_cast<std::byte*>(memory), length});
  if (!num_cached && !is_cached(memory, length)) return std::nullopt;
  if (madvise(memory, length, kBringPages) != 0) return std::nullopt;
  return view;
}

FileView::FileView(FileView&& other) noexcept : begin_(other.begin_), pages_(std::exchange(other.pages_, {})) {}

FileView& FileView::operator=(FileView&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(pages_, other.pages_);
  return *this;
}

FileView::~FileView() {
  if (!pages_.empty()) munmap(pages_.data(), pages_.size());
}

bool FileView::holds(std::uint64_t offset, std::size_t num_bytes) const {
  return offset >= begin_ && offset + num_bytes <= begin_ + pages_.size();
}

std::span<const std::byte> FileView::bytes(std::uint64_t offset, std::size_t num_bytes) const {
  return pages_.subspan(static_cast<std::size_t>(offset - begin_), num_bytes);
}

namespace {

/// The argument and the result of cachestat(2), which the headers of C libraries do not declare yet.
struct CacheRange {
  std::uint64_t offset;
  std::uint64_t num_bytes;
};
struct CacheState {
  std::uint64_t num_cached;
  std::uint64_t others[4];
};
constexpr long kCacheState = 451;  // the number of the call, the same for all processors

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

std::optional<std::uint64_t> num_cached_pages(int file, std::uint64_t offset, std::uint64_t num_bytes) {
  CacheRange range{offset, num_bytes};
  CacheState state{};
  if (syscall(kCacheState, file, &range, &state, 0) != 0) return std::nullopt;
  return state.num_cached;
}

std::uint64_t num_pages(std::uint64_t offset, std::uint64_t num_bytes) {
  const std::uint64_t page = page_bytes();
  return num_bytes == 0 ? 0 : (offset + num_bytes - 1) / page - offset / page + 1;
}

bool is_cached(void* pages, std::size_t num_bytes) {
  std::vector<unsigned char> states(num_pages(0, num_bytes));
  if (mincore(pages, num_bytes, states.data()) != 0) return false;
  return std::all_of(states.begin(), states.end(), [](unsigned char state) { return (state & 1U) != 0; });
}

FileReader::FileReader(std::filesystem::path path) : path_(std::move(path)) {
  const auto fail = [this] { throw StorageError(path_.string() + " cannot be read: " + std::strerror(errno)); };
  // A pipe would make open() wait for its other end.
  file_ = Descriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file_) fail();
  struct stat found{};
  if (fstat(file_.get(), &found) != 0) fail();
  if (!S_ISREG(found.st_mode)) throw StorageError(path_.string() + " is no regular file");
  num_bytes_ = static_cast<std::uint64_t>(found.st_size);
  // This doubles what the system fetches ahead. Asking it for each extent (WILLNEED) was slower, cold and warm: the
  // page cache then holds single small pages, whereas sequential reading makes it use larger and larger ones.
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
