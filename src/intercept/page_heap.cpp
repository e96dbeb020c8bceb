#include "intercept/page_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace tessera::intercept {
namespace {

// Of all ranges, so that blocks of nearly one size leave no slivers.
constexpr std::size_t kGrainBytes = std::size_t{64} << 10;

std::size_t round_up(std::size_t num_bytes, std::size_t to) { return (num_bytes + to - 1) / to * to; }

}  // namespace

PageHeap::~PageHeap() {
  unmap(0);
  for (const auto& [start, size] : used_) munmap(start, size);
}

void* PageHeap::take(std::size_t num_bytes) {
  const std::size_t size = round_up(std::max<std::size_t>(num_bytes, 1), kGrainBytes);
  if (size < num_bytes) return nullptr;  // there is no such number
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
    add_free(start, size);  // the process has as many mappings as it may have
    return;
  }
}

}  // namespace tessera::intercept
