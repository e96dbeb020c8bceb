#include "offload/store/host_memory.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <sys/mman.h>
#include <utility>

namespace tessera::offload {

std::shared_ptr<HostMemory> HostMemory::make(std::shared_ptr<Budget> budget, std::size_t alignment) {
  return std::shared_ptr<HostMemory>(new HostMemory(std::move(budget), alignment));
}

HostMemory::HostMemory(std::shared_ptr<Budget> budget, std::size_t alignment)
    : budget_(std::move(budget)), alignment_(alignment) {}

HostMemory::~HostMemory() { drop_spare(); }

std::unique_ptr<HostMemory::Block> HostMemory::map(std::size_t num_bytes, Budget::Share share) {
  void* const pages = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw StorageError("offload: the system has no " + bytes_text(num_bytes) + " of memory: offload more to files");
  }
  madvise(pages, num_bytes, MADV_HUGEPAGE);  // fewer faults, and fewer pages for the disk; only a hint
  auto block = std::make_unique<Block>();
  block->bytes = static_cast<std::byte*>(pages);
  block->num_bytes = num_bytes;
  block->share = std::move(share);
  return block;
}

/// The share ends after the memory.
void HostMemory::unmap(Block& block) noexcept {
  munmap(block.bytes, block.num_bytes);
  block.bytes = nullptr;
}

std::unique_ptr<HostMemory::Block> HostMemory::take_spare(std::size_t num_bytes, Kind kind) {
  std::unique_ptr<Block> block;
  {
    const std::lock_guard lock(mutex_);
    auto found = spare_.extract(num_bytes);
    if (found.empty()) return nullptr;
    block = std::move(found.mapped());
  }
  // It counted as a buffer. Somebody else may take the bytes in between; then the pages go.
  block->share = Budget::Share();
  if (auto share = budget_->try_take(num_bytes, kind)) {
    block->share = std::move(*share);
    return block;
  }
  unmap(*block);
  return nullptr;
}

void HostMemory::drop_spare() {
  std::multimap<std::size_t, std::unique_ptr<Block>> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(spare_);
  }
  for (auto& [size, block] : dropped) unmap(*block);
}

void HostMemory::give_back(Block* block) noexcept {
  std::unique_ptr<Block> owned(block);
  owned->share = Budget::Share();
  auto share = budget_->try_take(owned->num_bytes, Kind::kBuffers);
  if (!share) return unmap(*owned);
  owned->share = std::move(*share);
  const std::lock_guard lock(mutex_);
  spare_.emplace(owned->num_bytes, std::move(owned));
}

std::shared_ptr<std::byte> HostMemory::try_take(std::size_t num_bytes, Kind kind) {
  const std::size_t rounded = std::max(alignment_, (num_bytes + alignment_ - 1) / alignment_ * alignment_);
  std::unique_ptr<Block> block = take_spare(rounded, kind);
  if (!block) {
    auto share = budget_->try_take(rounded, kind);
    if (!share) {
      drop_spare();
      share = budget_->try_take(rounded, kind);
    }
    if (!share) return nullptr;
    block = map(rounded, std::move(*share));
  }
  std::byte* const bytes = block->bytes;
  return {bytes, [memory = shared_from_this(), owned = block.release()](std::byte*) { memory->give_back(owned); }};
}

std::shared_ptr<std::byte> HostMemory::take(std::size_t num_bytes, Kind kind, const std::string& what) {
  do {
    if (auto bytes = try_take(num_bytes, kind)) return bytes;
  } while (drop_one_ && drop_one_());
  static_cast<void>(budget_->take(num_bytes, kind, what));  // throws
  return take(num_bytes, kind, what);                       // unless another thread has made room meanwhile
}

}  // namespace tessera::offload
