#include "intercept/counting_allocator.h"

#include <tessera/core/error.h>
#include <tessera/intercept/memory_count.h>
#include <tessera/intercept/thread_memory.h>

#include <c10/util/Exception.h>

#include <iomanip>
#include <iterator>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "intercept/device_reports.h"

namespace tessera::intercept {
namespace {

thread_local std::shared_ptr<Ledger> of_this_thread;

}  // namespace

CountingAllocator& CountingAllocator::of_process() noexcept {
  static auto* const allocator = new CountingAllocator;  // NOLINT(bugprone-unhandled-exception-at-new)
  return *allocator;
}

namespace {

/// As that of LargeBlockAllocator.
[[maybe_unused]] const CountingAllocator& made_at_start_too = CountingAllocator::of_process();

}  // namespace

c10::DataPtr CountingAllocator::allocate_usual(std::size_t num_bytes) const {
  try {
    return usual_.allocate(num_bytes);
  } catch (const c10::Error& error) {
    // If this thread counts its memory, the error can say more than that none is left.
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
  const std::lock_guard lock(mutex_);
  if (!counters_ && !of_this_thread) return memory;
  book_in(memory.get(),
          {.num_bytes = static_cast<std::int64_t>(num_bytes), .counters = counters_, .ledger = of_this_thread});
  return memory;
}

void CountingAllocator::book_in(const void* address, Block block) {
  if (block.counters) block.counters->add(block.num_bytes);
  if (block.ledger) {
    block.kind = block.ledger->kind_of_new;
    block.ledger->add(block.kind, block.num_bytes);
    if (block.ledger->marks) block.ledger->marked.push_back(address);
  }
  blocks_[address] = std::move(block);
}

void CountingAllocator::book_out(const void* address) {
  // Blocks that were made before the count began are not in the table.
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  const Block& block = found->second;
  if (block.counters) block.counters->live -= block.num_bytes;
  if (block.ledger) block.ledger->add(block.kind, -block.num_bytes);
  blocks_.erase(found);
}

void CountingAllocator::was_made(const void* block, std::int64_t num_bytes, const std::shared_ptr<Ledger>& ledger) {
  const std::lock_guard lock(mutex_);
  book_out(block);  // the address is used again, so the one before was freed, of which nothing was heard
  book_in(block, {.num_bytes = num_bytes, .counters = nullptr, .ledger = ledger});
}

void CountingAllocator::was_freed(const void* block) {
  const std::lock_guard lock(mutex_);
  book_out(block);
}

void CountingAllocator::forget(const std::shared_ptr<Ledger>& ledger) {
  const std::lock_guard lock(mutex_);
  for (auto entry = blocks_.begin(); entry != blocks_.end();) {
    Block& block = entry->second;
    if (block.ledger == ledger) block.ledger = nullptr;
    entry = block.ledger || block.counters ? std::next(entry) : blocks_.erase(entry);
  }
}

void CountingAllocator::copy_data(void* destination, const void* source, std::size_t num_bytes) const {
  usual_.copy_data(destination, source, num_bytes);
}

void CountingAllocator::free_block(void* data) {
  CountingAllocator& self = of_process();
  {
    const std::lock_guard lock(self.mutex_);
    self.book_out(data);
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

MemoryCount::MemoryCount() : counters_(std::make_shared<Counters>()) {
  CountingAllocator::of_process().start(counters_);
}

MemoryCount::~MemoryCount() { CountingAllocator::of_process().stop(); }

std::int64_t MemoryCount::live_bytes() const { return counters_->live; }

std::int64_t MemoryCount::peak_bytes() const { return counters_->peak; }

void MemoryCount::reset_peak() { counters_->peak = live_bytes(); }

}  // namespace tessera::intercept

namespace tessera {

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kParameters:
      return "parameters";
    case MemoryKind::kGathered:
      return "gathered";
    case MemoryKind::kGradients:
      return "gradients";
    case MemoryKind::kOptimizer:
      return "optimizer";
    case MemoryKind::kActivations:
      return "activations";
    case MemoryKind::kSpare:
      return "spare";
  }
  throw InternalError("no such kind of memory");
}

namespace intercept {

std::string no_memory_text(std::size_t num_bytes, const MemoryBytes& live, const std::string& owner,
                           const std::string& advice) {
  constexpr double kMib = 1 << 20;
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << "there is no memory for " << static_cast<double>(num_bytes) / kMib
       << " MiB more on " << owner << ", which holds";
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    text << (i == 0 ? " " : ", ") << static_cast<double>(live.of_kind[i]) / kMib << " MiB of "
         << name_of(static_cast<MemoryKind>(i));
  }
  if (!advice.empty()) text << ". " << advice;
  return text.str();
}

ThreadMemory::ThreadMemory(c10::Device device) : ledger_(std::make_shared<Ledger>()) {
  if (!device.is_cpu()) reports_ = std::make_unique<DeviceReports>(ledger_);
  CountingAllocator::of_process().start_thread(ledger_);
}

ThreadMemory::~ThreadMemory() { CountingAllocator::of_process().stop_thread(); }

MemoryBytes ThreadMemory::live() const { return ledger_->live(); }
MemoryBytes ThreadMemory::peaks() const { return ledger_->peaks(); }
std::int64_t ThreadMemory::peak_of_all() const { return ledger_->peak_of_all(); }
void ThreadMemory::reset_peaks() { ledger_->reset_peaks(); }

void ThreadMemory::add(MemoryKind kind, std::int64_t num_bytes) { ledger_->add(kind, num_bytes); }

void ThreadMemory::move(const at::Tensor& tensor, MemoryKind kind) {
  CountingAllocator::of_process().move(tensor.storage().data(), ledger_, kind);
}

void ThreadMemory::start_marking() {
  ledger_->marked.clear();
  ledger_->marks = true;
}

void ThreadMemory::stop_marking() {
  ledger_->marked.clear();
  ledger_->marks = false;
}

void ThreadMemory::move_marked(MemoryKind kind) { CountingAllocator::of_process().move_marked(ledger_, kind); }

void ThreadMemory::explain_failures(const std::string& owner, const std::string& advice) {
  ledger_->owner = owner;
  ledger_->advice = advice;
}

ThreadMemory::Scope::Scope(ThreadMemory& memory, MemoryKind kind)
    : ledger_(memory.ledger_), outer_(std::exchange(ledger_->kind_of_new, kind)) {}

ThreadMemory::Scope::~Scope() { ledger_->kind_of_new = outer_; }

}  // namespace intercept
}  // namespace tessera
