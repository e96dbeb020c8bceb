#include <tessera/core/error.h>
#include <tessera/intercept/memory_count.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace tessera::intercept {

/// Written under the allocator's lock.
struct MemoryCount::Counters {
  std::atomic<std::int64_t> live = 0;
  std::atomic<std::int64_t> peak = 0;

  void add(std::int64_t num_bytes) {
    live += num_bytes;
    if (live > peak) peak = live.load();
  }
};

namespace {

/// Note [Counting below LibTorch]
/// Some code of LibTorch (oneDNN's) asks whichever allocator is in place for plain pointers, and later whichever is
/// then in place to free them. So blocks must be freed rightly by either: ours are the usual allocator's, unchanged,
/// and what is known of them is in a table beside them. It belongs to the process, as LibTorch's slot for the allocator
/// does, and is never destroyed: storages keep a pointer to the allocator that made them.
class CountingAllocator : public c10::Allocator {
 public:
  static CountingAllocator& of_process() {
    static auto* const allocator = new CountingAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t num_bytes) override {
    c10::DataPtr memory = usual_->allocate(num_bytes);
    if (memory.get() == nullptr || !memory.compare_exchange_deleter(usual_->raw_deleter(), &free_block)) return memory;
    const std::lock_guard lock(mutex_);
    if (!counters_) return memory;
    const auto size = static_cast<std::int64_t>(num_bytes);
    counters_->add(size);
    blocks_[memory.get()] = {size, counters_};
    return memory;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override {
    usual_->copy_data(destination, source, num_bytes);
  }

  void start(const std::shared_ptr<MemoryCount::Counters>& counters) {
    const std::lock_guard lock(mutex_);
    if (counters_) throw ConfigError("the memory of tensors is counted already: there can be one MemoryCount");
    if (c10::GetCPUAllocator() != usual_) {
      throw ConfigError("the memory of tensors cannot be counted: something has replaced LibTorch's CPU allocator");
    }
    counters_ = counters;
    c10::SetCPUAllocator(this);
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    counters_ = nullptr;
    c10::SetCPUAllocator(usual_);
  }

 private:
  struct Block {
    std::int64_t num_bytes;
    std::shared_ptr<MemoryCount::Counters> counters;
  };

  static void free_block(void* data) {
    CountingAllocator& self = of_process();
    {
      const std::lock_guard lock(self.mutex_);
      // Blocks that were made before the count began are not in the table.
      if (const auto found = self.blocks_.find(data); found != self.blocks_.end()) {
        found->second.counters->live -= found->second.num_bytes;
        self.blocks_.erase(found);
      }
    }
    self.usual_->raw_deleter()(data);
  }

  std::mutex mutex_;
  c10::Allocator* const usual_ = c10::GetDefaultCPUAllocator();
  std::shared_ptr<MemoryCount::Counters> counters_;
  std::unordered_map<void*, Block> blocks_;
};

}  // namespace

MemoryCount::MemoryCount() : counters_(std::make_shared<Counters>()) {
  CountingAllocator::of_process().start(counters_);
}

MemoryCount::~MemoryCount() { CountingAllocator::of_process().stop(); }

std::int64_t MemoryCount::live_bytes() const { return counters_->live; }

std::int64_t MemoryCount::peak_bytes() const { return counters_->peak; }

void MemoryCount::reset_peak() { counters_->peak = live_bytes(); }

}  // namespace tessera::intercept
