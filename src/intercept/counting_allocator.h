#pragma once

#include <tessera/intercept/memory_count.h>
#include <tessera/intercept/thread_memory.h>

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "intercept/large_block_allocator.h"

namespace tessera::intercept {

std::string no_memory_text(std::size_t num_bytes, const MemoryBytes& live, const std::string& owner,
                           const std::string& advice);

/// What one thread's memory is used for.
/// Thread-safety: functions may be called by any thread; the public members belong to the counted thread.
class Ledger {
 public:
  void add(MemoryKind kind, std::int64_t num_bytes) {
    const std::lock_guard lock(mutex_);
    book(kind, num_bytes);
  }
  void move(MemoryKind from, MemoryKind to, std::int64_t num_bytes) {
    const std::lock_guard lock(mutex_);
    book(from, -num_bytes);
    book(to, num_bytes);
  }

  MemoryBytes live() const {
    const std::lock_guard lock(mutex_);
    return live_;
  }
  MemoryBytes peaks() const {
    const std::lock_guard lock(mutex_);
    return peaks_;
  }
  std::int64_t peak_of_all() const {
    const std::lock_guard lock(mutex_);
    return peak_of_all_;
  }
  void reset_peaks() {
    const std::lock_guard lock(mutex_);
    peaks_ = live_;
    peak_of_all_ = live_.all();
  }

  /// The message for a failed allocation of `num_bytes`.
  std::string why_no_memory(std::size_t num_bytes) const { return no_memory_text(num_bytes, live(), owner, advice); }

  std::string owner = "this thread";
  std::string advice;
  MemoryKind kind_of_new = MemoryKind::kActivations;
  bool marks = false;
  std::vector<const void*> marked;  // blocks that were made while `marks` was set; some may be freed by now

 private:
  void book(MemoryKind kind, std::int64_t num_bytes) {
    live_.of(kind) += num_bytes;
    peaks_.of(kind) = std::max(peaks_.of(kind), live_.of(kind));
    peak_of_all_ = std::max(peak_of_all_, live_.all());
  }

  mutable std::mutex mutex_;
  MemoryBytes live_;
  MemoryBytes peaks_;
  std::int64_t peak_of_all_ = 0;
};

/// Written under the allocator's lock, except by MemoryCount::reset_peak().
struct MemoryCount::Counters {
  std::atomic<std::int64_t> live = 0;
  std::atomic<std::int64_t> peak = 0;

  void add(std::int64_t num_bytes) {
    live += num_bytes;
    if (live > peak) peak = live.load();
  }
};

/// Note [Counting below LibTorch]
/// Some code of LibTorch (oneDNN's) gets plain pointers from the allocator that is installed at that time, and frees
/// them with the one that is installed later. So either allocator must be able to free any block: ours returns the
/// usual allocator's blocks unchanged, and keeps its data in a separate table. The allocator belongs to the process, as
/// LibTorch's allocator slot does, and is never destroyed: storages keep a pointer to the allocator that made them.
class CountingAllocator : public c10::Allocator {
 public:
  static CountingAllocator& of_process() noexcept;

  c10::DataPtr allocate(std::size_t num_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override;

  /// Counts all blocks in `counters`. Throws ConfigError when they are counted already.
  void start(const std::shared_ptr<MemoryCount::Counters>& counters);
  void stop();
  /// Counts the blocks of this thread in `ledger`. Throws ConfigError when they are counted already.
  void start_thread(const std::shared_ptr<Ledger>& ledger);
  void stop_thread();

  /// The block at this address counts as this kind from now on, if `ledger` counts it.
  void move(const void* block, const std::shared_ptr<Ledger>& ledger, MemoryKind kind);
  /// The same for all blocks of the kind kActivations in Ledger::marked. Clears the marks.
  void move_marked(const std::shared_ptr<Ledger>& ledger, MemoryKind kind);

  /// What another allocator tells of its blocks (see Note [Reports of device memory]).
  void was_made(const void* block, std::int64_t num_bytes, const std::shared_ptr<Ledger>& ledger);
  void was_freed(const void* block);
  /// Blocks of `ledger` that live still are counted no longer.
  void forget(const std::shared_ptr<Ledger>& ledger);

 private:
  struct Block {
    std::int64_t num_bytes = 0;
    std::shared_ptr<MemoryCount::Counters> counters;  // null: no MemoryCount counts it
    std::shared_ptr<Ledger> ledger;
    MemoryKind kind = MemoryKind::kActivations;
  };

  c10::DataPtr allocate_usual(std::size_t num_bytes) const;
  // Both with the lock held.
  void book_in(const void* address, Block block);
  void book_out(const void* address);
  static void free_block(void* data);
  void install();
  void uninstall();

  std::mutex mutex_;
  LargeBlockAllocator& usual_ = LargeBlockAllocator::of_process();
  int num_counts_ = 0;
  std::shared_ptr<MemoryCount::Counters> counters_;
  std::unordered_map<const void*, Block> blocks_;
};

}  // namespace tessera::intercept
