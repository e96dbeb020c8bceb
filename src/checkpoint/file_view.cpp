#include "checkpoint/file_view.h"

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include "checkpoint/page_cache.h"

namespace tessera::checkpoints {
namespace {

#ifdef MADV_POPULATE_READ
constexpr int kBringPages = MADV_POPULATE_READ;
#else
constexpr int kBringPages = 22;  // a system whose headers are older may know it all the same
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

}  // namespace tessera::checkpoints
