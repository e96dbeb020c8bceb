#include "comm/host/arena.h"

#include <tessera/core/error.h>

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

namespace tessera::comm {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(int fd, std::byte* memory, std::size_t begin, std::size_t num_bytes)
    : fd_(fd), memory_(memory), begin_(begin), capacity_(num_bytes), free_ranges_{{0, num_bytes}} {}

std::size_t Arena::take_range(std::size_t num_bytes) {
  const std::size_t unit = num_bytes >= kHugePage ? kHugePage : kPage;
  for (auto range = free_ranges_.begin(); range != free_ranges_.end(); ++range) {
    const auto [begin, length] = *range;
    const std::size_t start = round_up(begin, unit);
    if (start + num_bytes > begin + length) continue;
    free_ranges_.erase(range);
    if (start > begin) free_ranges_[begin] = start - begin;
    if (start + num_bytes < begin + length) free_ranges_[start + num_bytes] = begin + length - start - num_bytes;
    return start;
  }
  throw StorageError("no room for " + std::to_string(num_bytes) + " bytes of shared memory: " +
                     std::to_string(used_bytes_) + " of " + std::to_string(capacity_) + " are in use on this rank");
}

void Arena::return_range(std::size_t begin, std::size_t num_bytes) {
  auto next = free_ranges_.lower_bound(begin);
  if (next != free_ranges_.end() && begin + num_bytes == next->first) {
    num_bytes += next->second;
    next = free_ranges_.erase(next);
  }
  if (next != free_ranges_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += num_bytes;
      return;
    }
  }
  free_ranges_[begin] = num_bytes;
}

std::byte* Arena::allocate(std::size_t num_bytes) {
  num_bytes = round_up(std::max<std::size_t>(num_bytes, 1), kPage);
  std::size_t begin = 0;
  {
    const std::lock_guard lock(mutex_);
    begin = take_range(num_bytes);
    used_ranges_[begin] = num_bytes;
    used_bytes_ += num_bytes;
  }
  std::byte* memory = memory_ + begin;
  if (num_bytes >= kHugePage) madvise(memory, num_bytes, MADV_HUGEPAGE);
  if (fallocate(fd_, 0, static_cast<off_t>(begin_ + begin), static_cast<off_t>(num_bytes)) != 0) {
    const int error = errno;
    free(memory);
    throw StorageError("the system has no " + std::to_string(num_bytes) + " bytes of shared memory left (" +
                       std::strerror(error) + "); free memory or raise the memory limit of this job");
  }
  return memory;
}

void Arena::free(std::byte* memory) noexcept {
  const auto begin = static_cast<std::size_t>(memory - memory_);
  const std::lock_guard lock(mutex_);
  const auto range = used_ranges_.find(begin);
  if (range == used_ranges_.end()) return;
  const std::size_t num_bytes = range->second;
  if (!leaves_pages_) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin_ + begin),
              static_cast<off_t>(num_bytes));
  }
  used_ranges_.erase(range);
  used_bytes_ -= num_bytes;
  return_range(begin, num_bytes);
}

void Arena::leave_pages() noexcept {
  const std::lock_guard lock(mutex_);
  leaves_pages_ = true;
}

std::size_t Arena::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

}  // namespace tessera::comm
