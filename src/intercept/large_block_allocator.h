#pragma once

#include <tessera/intercept/large_blocks.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace tessera::intercept {

/// Blocks of whole pages. Uses the smallest free range that fits, and merges free neighbours.
/// Thread-safety: none.
class PageHeap {
 public:
  /// Keeps up to `min_spare_bytes` free bytes, or as many as are in use if that is more.
  explicit PageHeap(std::size_t min_spare_bytes) : min_spare_bytes_(min_spare_bytes) {}
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  /// Null when the system has no memory. Uninitialised.
  void* take(std::size_t num_bytes);
  /// Returns false if the block is not of this heap.
  bool give_back(void* block);

  std::size_t used_bytes() const { return used_bytes_; }
  std::size_t spare_bytes() const { return spare_bytes_; }

 private:
  using Ranges = std::map<char*, std::size_t>;

  bool grow(std::size_t size);
  void add_free(char* start, std::size_t size);
  void remove_free(Ranges::iterator range);
  void unmap(std::size_t max_spare_bytes);

  std::size_t min_spare_bytes_;
  Ranges free_;                                      // by address
  std::set<std::pair<std::size_t, char*>> by_size_;  // the same
  std::unordered_map<void*, std::size_t> used_;
  std::size_t used_bytes_ = 0;
  std::size_t spare_bytes_ = 0;
};

/// LibTorch's allocator, but large blocks come from a PageHeap after keep_apart(). Belongs to the process and is never
/// destroyed: storages keep a pointer to the allocator that made them.
class LargeBlockAllocator : public c10::Allocator {
 public:
  static LargeBlockAllocator& of_process() noexcept;

  /// Small blocks come from LibTorch's own allocator.
  c10::DataPtr allocate(std::size_t num_bytes) override;
  /// See Note [Counting below LibTorch].
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override;

  /// Frees a block of either kind.
  static void free_block(void* data);

  /// Held while LibTorch's allocator slot is changed, which has no lock of its own.
  std::mutex& slot_mutex() { return slot_mutex_; }
  c10::Allocator* usual() const { return usual_; }
  void keep_apart() { keeps_apart_ = true; }
  bool keeps_apart() const { return keeps_apart_; }
  /// Pages, or null if the system has none.
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
