#pragma once

#include <tessera/intercept/memory_count.h>

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "intercept/large_block_allocator.h"
#include "intercept/ledger.h"

namespace tessera::intercept {

/// Note [Counting below LibTorch]
/// Some code of LibTorch (oneDNN's) asks whichever allocator is in place for plain pointers, and later whichever is
/// then in place to free them. So blocks must be freed rightly by either: ours are the usual allocator's, unchanged,
/// and what is known of them is in a table beside them. It belongs to the process, as LibTorch's slot for the allocator
/// does, and is never destroyed: storages keep a pointer to the allocator that made them.
class CountingAllocator : public c10::Allocator {
 public:
  static CountingAllocator& of_process();

  c10::DataPtr allocate(std::size_t num_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override;

  /// Counts all blocks here. Throws ConfigError when others do.
  void start(const std::shared_ptr<MemoryCount::Counters>& counters);
  void stop();
  /// Counts the blocks of this thread there. Throws ConfigError when it counts them already.
  void start_thread(const std::shared_ptr<Ledger>& ledger);
  void stop_thread();

  /// The block that begins here, if `ledger` counts it, counts as this kind.
  void move(const void* block, const std::shared_ptr<Ledger>& ledger, MemoryKind kind);
  /// The same for all blocks of the kind kActivations that the thread made since Ledger::mark().
  void move_marked(const std::shared_ptr<Ledger>& ledger, MemoryKind kind);

 private:
  struct Block {
    std::int64_t num_bytes = 0;
    std::shared_ptr<MemoryCount::Counters> counters;  // null: it is not counted there
    std::shared_ptr<Ledger> ledger;
    MemoryKind kind = MemoryKind::kActivations;
  };

  c10::DataPtr allocate_usual(std::size_t num_bytes) const;
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
