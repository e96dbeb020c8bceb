#include "fsdp/buffer_pool.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace tessera::fsdp {
namespace {

/// Pages that are the process's own, and go back to the system when nobody holds them.
std::shared_ptr<void> map_pages(std::size_t num_bytes) {
  void* pages = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw StorageError("no " + std::to_string(num_bytes) +
                       " bytes of memory to gather parameters into: use smaller units, or more ranks");
  }
  return {pages, [num_bytes](void* memory) { munmap(memory, num_bytes); }};
}

/// In memory that the group moves with the fewest copies, where it has such.
std::shared_ptr<void> allocate(const Communicator& comm, std::size_t num_bytes) {
  if (!comm.allocator()) return map_pages(num_bytes);
  auto tensor = std::make_shared<at::Tensor>(comm.empty({static_cast<std::int64_t>(num_bytes)}, at::kByte));
  return {tensor, tensor->mutable_data_ptr()};
}

}  // namespace

struct BufferPool::State {
  std::multimap<std::size_t, std::shared_ptr<void>> free;  // by size
  std::size_t lent_bytes = 0;
  std::size_t peak_bytes = 0;
  std::size_t held_bytes = 0;
  OnChange on_change;

  void count(std::int64_t lent_change, std::int64_t held_change) {
    lent_bytes += static_cast<std::size_t>(lent_change);
    held_bytes += static_cast<std::size_t>(held_change);
    peak_bytes = std::max(peak_bytes, lent_bytes);
    if (on_change) on_change(lent_change, held_change - lent_change);
  }
};

BufferPool::BufferPool(Communicator comm, std::size_t buffer_bytes)
    : comm_(std::move(comm)), buffer_bytes_(buffer_bytes), state_(std::make_shared<State>()) {}

c10::DataPtr BufferPool::lend(std::size_t num_bytes) {
  struct Loan {
    std::shared_ptr<State> pool;
    std::shared_ptr<void> buffer;
    std::size_t buffer_bytes;
    std::size_t num_bytes;
  };
  const std::size_t size = std::max<std::size_t>(buffer_bytes_ > 0 ? buffer_bytes_ : num_bytes, 1);
  if (num_bytes > size) throw InternalError("a unit is larger than the buffers for units");
  auto kept = state_->free.extract(size);
  const bool is_new = kept.empty();
  std::shared_ptr<void> buffer = is_new ? allocate(comm_, size) : std::move(kept.mapped());
  state_->count(static_cast<std::int64_t>(num_bytes), is_new ? static_cast<std::int64_t>(size) : 0);
  void* const bytes = buffer.get();
  auto loan = std::make_unique<Loan>(Loan{state_, std::move(buffer), size, num_bytes});
  const auto give_back = [](void* context) {
    const std::unique_ptr<Loan> ended(static_cast<Loan*>(context));
    ended->pool->count(-static_cast<std::int64_t>(ended->num_bytes), 0);
    ended->pool->free.emplace(ended->buffer_bytes, std::move(ended->buffer));
  };
  return {bytes, loan.release(), give_back, c10::Device(c10::kCPU)};
}

std::size_t BufferPool::lent_bytes() const { return state_->lent_bytes; }
std::size_t BufferPool::peak_bytes() const { return state_->peak_bytes; }
std::size_t BufferPool::held_bytes() const { return state_->held_bytes; }

void BufferPool::observe(OnChange on_change) { state_->on_change = std::move(on_change); }

}  // namespace tessera::fsdp
