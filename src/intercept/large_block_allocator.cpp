#include "intercept/large_block_allocator.h"

#include <algorithm>
#include <iterator>
#include <sys/mman.h>

#include "intercept/counting_allocator.h"

namespace tessera::intercept {
namespace {

// Sizes of all ranges are multiples of this, so that blocks of nearly the same size leave no slivers.
constexpr std::size_t kGrainBytes = std::size_t{64} << 10;

std::size_t round_up(std::size_t num_bytes, std::size_t to) { return (num_bytes + to - 1) / to * to; }

}  // namespace

PageHeap::~PageHeap() {
  unmap(0);
  for (const auto& [start, size] : used_) munmap(start, size);
}

void* PageHeap::take(std::size_t num_bytes) {
  const std::size_t size = round_up(std::max<std::size_t>(num_bytes, 1), kGrainBytes);
  if (size < num_bytes) return nullptr;  // overflow
  auto fit = by_size_.lower_bound({size, nullptr});
  if (fit == by_size_.end()) {
    if (!grow(size)) return nullptr;
    fit = by_size_.lower_bound({size, nullptr});
  }
  const auto [found_size, start] = *fit;
  remove_free(free_.find(start));
  if (found_size > size) add_free(start + size, found_size - size);
  used_.emplace(start, size);
  used_bytes_ += size;
  return start;
}

bool PageHeap::give_back(void* block) {
  const auto found = used_.find(block);
  if (found == used_.end()) return false;
  const std::size_t size = found->second;
  used_.erase(found);
  used_bytes_ -= size;
  add_free(static_cast<char*>(block), size);
  if (spare_bytes_ > std::max(min_spare_bytes_, used_bytes_)) unmap(std::max(min_spare_bytes_, used_bytes_));
  return true;
}

bool PageHeap::grow(std::size_t size) {
  const auto map = [size] { return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); };
  void* pages = map();
  if (pages == MAP_FAILED && spare_bytes_ > 0) {
    unmap(0);
    pages = map();
  }
  if (pages == MAP_FAILED) return false;
  add_free(static_cast<char*>(pages), size);
  return true;
}

void PageHeap::add_free(char* start, std::size_t size) {
  spare_bytes_ += size;
  auto next = free_.lower_bound(start);
  if (next != free_.end() && start + size == next->first) {
    size += next->second;
    by_size_.erase({next->second, next->first});
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      start = previous->first;
      size += previous->second;
      by_size_.erase({previous->second, previous->first});
      free_.erase(previous);
    }
  }
  free_.emplace(start, size);
  by_size_.emplace(size, start);
}

void PageHeap::remove_free(Ranges::iterator range) {
  spare_bytes_ -= range->second;
  by_size_.erase({range->second, range->first});
  free_.erase(range);
}

void PageHeap::unmap(std::size_t max_spare_bytes) {
  while (spare_bytes_ > max_spare_bytes) {
    const auto [size, start] = *by_size_.rbegin();
    remove_free(free_.find(start));
    if (munmap(start, size) == 0) continue;
    add_free(start, size);  // the process has reached its limit of mappings
    return;
  }
}

namespace {

constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

}  // namespace

LargeBlockAllocator& LargeBlockAllocator::of_process() noexcept {
  static auto* const allocator = new LargeBlockAllocator;  // NOLINT(bugprone-unhandled-exception-at-new)
  return *allocator;
}

namespace {

/// Made before there are threads: LibTorch's slot for allocators hands it to the others, which may be allocating,
/// without any order between its making and its use.
[[maybe_unused]] const LargeBlockAllocator& made_at_start = LargeBlockAllocator::of_process();

}  // namespace

c10::DataPtr LargeBlockAllocator::allocate(std::size_t num_bytes) {
  if (num_bytes < kLargeBytes || !keeps_apart_) return usual_->allocate(num_bytes);
  void* const block = take(num_bytes);
  // The usual allocator may have free memory left, and else throws its own error.
  if (block == nullptr) return usual_->allocate(num_bytes);
  c10::profiledCPUMemoryReporter().New(block, num_bytes);
  return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
}

void* LargeBlockAllocator::take(std::size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  return heap_.take(num_bytes);
}

void LargeBlockAllocator::free_block(void* data) {
  LargeBlockAllocator& self = of_process();
  {
    const std::lock_guard lock(self.mutex_);
    if (self.heap_.give_back(data)) {
      c10::profiledCPUMemoryReporter().Delete(data);
      return;
    }
  }
  self.usual_->raw_deleter()(data);
}

void LargeBlockAllocator::copy_data(void* destination, const void* source, std::size_t num_bytes) const {
  usual_->copy_data(destination, source, num_bytes);
}

LargeBlockBytes LargeBlockAllocator::bytes() {
  const std::lock_guard lock(mutex_);
  return {heap_.used_bytes(), heap_.spare_bytes()};
}

bool keep_large_blocks_apart() {
  LargeBlockAllocator& allocator = LargeBlockAllocator::of_process();
  const std::lock_guard lock(allocator.slot_mutex());
  c10::Allocator* const present = c10::GetCPUAllocator();
  if (present == allocator.usual()) c10::SetCPUAllocator(&allocator);
  // The counting allocator uses this one already.
  const bool is_ours = c10::GetCPUAllocator() == &allocator || present == &CountingAllocator::of_process();
  if (is_ours) allocator.keep_apart();
  return is_ours;
}

std::shared_ptr<void> large_block(std::size_t num_bytes) {
  void* const block = LargeBlockAllocator::of_process().take(num_bytes);
  return block == nullptr ? nullptr : std::shared_ptr<void>(block, &LargeBlockAllocator::free_block);
}

LargeBlockBytes large_block_bytes() { return LargeBlockAllocator::of_process().bytes(); }

}  // namespace tessera::intercept
