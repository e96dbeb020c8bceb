#pragma once

#include <tessera/intercept/large_blocks.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <mutex>

#include "intercept/page_heap.h"

namespace tessera::intercept {

/// LibTorch's allocator, and pages for large blocks once they are kept apart. Belongs to the process and is never
/// destroyed: storages keep a pointer to the allocator that made them.
class LargeBlockAllocator : public c10::Allocator {
 public:
  static LargeBlockAllocator& of_process();

  /// Small blocks are as LibTorch's own.
  c10::DataPtr allocate(std::size_t num_bytes) override;
  /// See Note [Counting below LibTorch].
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override;

  /// Of either kind.
  static void free_block(void* data);

  /// Of LibTorch's slot for the allocator, which has none: held by who changes it.
  std::mutex& slot_mutex() { return slot_mutex_; }
  c10::Allocator* usual() const { return usual_; }
  void keep_apart() { keeps_apart_ = true; }
  bool keeps_apart() const { return keeps_apart_; }
  /// Pages, or null.
  void* take(std::size_t num_bytes);
  LargeBlockBytes bytes();

 private:
  c10::Allocator* const usual_ = c10::GetDefaultCPUAllocator();
  std::atomic<bool> keeps_apart_ = false;
  std::mutex slot_mutex_;
  std::mutex mutex_;  // of the heap
  PageHeap heap_{std::size_t{1} << 30};
};

}  // namespace tessera::intercept
