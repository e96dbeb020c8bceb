#include "intercept/counting_allocator.h"

#include <tessera/core/error.h>
#include <tessera/intercept/thread_memory.h>

#include <c10/util/Exception.h>

#include <utility>

#include "intercept/counters.h"

namespace tessera::intercept {
namespace {

thread_local std::shared_ptr<Ledger> of_this_thread;

}  // namespace

CountingAllocator& CountingAllocator::of_process() {
  static auto* const allocator = new CountingAllocator;
  return *allocator;
}

c10::DataPtr CountingAllocator::allocate_usual(std::size_t num_bytes) const {
  try {
    return usual_.allocate(num_bytes);
  } catch (const c10::Error& error) {
    // Who counts can say more than that there is no memory left.
    if (!of_this_thread) throw;
    throw StorageError(of_this_thread->why_no_memory(num_bytes) + " (" + error.what_without_backtrace() + ")");
  }
}

std::string why_no_memory(std::size_t num_bytes) {
  return of_this_thread ? of_this_thread->why_no_memory(num_bytes) : "";
}

c10::DataPtr CountingAllocator::allocate(std::size_t num_bytes) {
  c10::DataPtr memory = allocate_usual(num_bytes);
  if (memory.get() == nullptr || !memory.compare_exchange_deleter(memory.get_deleter(), &free_block)) return memory;
  Ledger* const ledger = of_this_thread.get();
  const std::lock_guard lock(mutex_);
  if (!counters_ && ledger == nullptr) return memory;
  Block block{.num_bytes = static_cast<std::int64_t>(num_bytes), .counters = counters_, .ledger = of_this_thread};
  if (counters_) counters_->add(block.num_bytes);
  if (ledger != nullptr) {
    block.kind = ledger->kind_of_new;
    ledger->add(block.kind, block.num_bytes);
    if (ledger->marks) ledger->marked.push_back(memory.get());
  }
  blocks_[memory.get()] = std::move(block);
  return memory;
}

void CountingAllocator::copy_data(void* destination, const void* source, std::size_t num_bytes) const {
  usual_.copy_data(destination, source, num_bytes);
}

void CountingAllocator::free_block(void* data) {
  CountingAllocator& self = of_process();
  {
    const std::lock_guard lock(self.mutex_);
    // Blocks that were made before the count began are not in the table.
    if (const auto found = self.blocks_.find(data); found != self.blocks_.end()) {
      const Block& block = found->second;
      if (block.counters) block.counters->live -= block.num_bytes;
      if (block.ledger) block.ledger->add(block.kind, -block.num_bytes);
      self.blocks_.erase(found);
    }
  }
  self.usual_.raw_deleter()(data);
}

void CountingAllocator::install() {
  if (num_counts_++ > 0) return;
  const std::lock_guard lock(usual_.slot_mutex());
  if (const auto* present = c10::GetCPUAllocator(); present != usual_.usual() && present != &usual_) {
    --num_counts_;
    throw ConfigError("the memory of tensors cannot be counted: something has replaced LibTorch's CPU allocator");
  }
  c10::SetCPUAllocator(this);
}

void CountingAllocator::uninstall() {
  if (--num_counts_ > 0) return;
  const std::lock_guard lock(usual_.slot_mutex());
  c10::SetCPUAllocator(usual_.keeps_apart() ? &usual_ : usual_.usual());
}

void CountingAllocator::start(const std::shared_ptr<MemoryCount::Counters>& counters) {
  const std::lock_guard lock(mutex_);
  if (counters_) throw ConfigError("the memory of tensors is counted already: there can be one MemoryCount");
  install();
  counters_ = counters;
}

void CountingAllocator::stop() {
  const std::lock_guard lock(mutex_);
  counters_ = nullptr;
  uninstall();
}

void CountingAllocator::start_thread(const std::shared_ptr<Ledger>& ledger) {
  const std::lock_guard lock(mutex_);
  if (of_this_thread) {
    throw ConfigError("the memory of this thread's tensors is counted already: there can be one count for each thread");
  }
  install();
  of_this_thread = ledger;
}

void CountingAllocator::stop_thread() {
  const std::lock_guard lock(mutex_);
  of_this_thread = nullptr;
  uninstall();
}

void CountingAllocator::move(const void* block, const std::shared_ptr<Ledger>& ledger, MemoryKind kind) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end() || found->second.ledger != ledger) return;
  ledger->move(std::exchange(found->second.kind, kind), kind, found->second.num_bytes);
}

void CountingAllocator::move_marked(const std::shared_ptr<Ledger>& ledger, MemoryKind kind) {
  const std::lock_guard lock(mutex_);
  for (const void* const block : ledger->marked) {
    const auto found = blocks_.find(block);
    if (found == blocks_.end() || found->second.ledger != ledger) continue;
    if (found->second.kind != MemoryKind::kActivations) continue;
    ledger->move(std::exchange(found->second.kind, kind), kind, found->second.num_bytes);
  }
  ledger->marked.clear();
}

}  // namespace tessera::intercept
