#include "intercept/large_block_allocator.h"

#include "intercept/counting_allocator.h"

namespace tessera::intercept {
namespace {

constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

}  // namespace

LargeBlockAllocator& LargeBlockAllocator::of_process() {
  static auto* const allocator = new LargeBlockAllocator;
  return *allocator;
}

c10::DataPtr LargeBlockAllocator::allocate(std::size_t num_bytes) {
  if (num_bytes < kLargeBytes || !keeps_apart_) return usual_->allocate(num_bytes);
  void* const block = take(num_bytes);
  // It may have kept some, and says in its own words if it has not.
  if (block == nullptr) return usual_->allocate(num_bytes);
  c10::profiledCPUMemoryReporter().New(block, num_bytes);
  return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
}

void* LargeBlockAllocator::take(std::size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  return heap_.take(num_bytes);
}

void LargeBlockAllocator::free_block(void* data) {
  LargeBlockAllocator& self = of_process();
  {
    const std::lock_guard lock(self.mutex_);
    if (self.heap_.give_back(data)) {
      c10::profiledCPUMemoryReporter().Delete(data);
      return;
    }
  }
  self.usual_->raw_deleter()(data);
}

void LargeBlockAllocator::copy_data(void* destination, const void* source, std::size_t num_bytes) const {
  usual_->copy_data(destination, source, num_bytes);
}

LargeBlockBytes LargeBlockAllocator::bytes() {
  const std::lock_guard lock(mutex_);
  return {heap_.used_bytes(), heap_.spare_bytes()};
}

bool keep_large_blocks_apart() {
  LargeBlockAllocator& allocator = LargeBlockAllocator::of_process();
  const std::lock_guard lock(allocator.slot_mutex());
  c10::Allocator* const present = c10::GetCPUAllocator();
  if (present == allocator.usual()) c10::SetCPUAllocator(&allocator);
  // Who counts asks it already.
  const bool is_ours = c10::GetCPUAllocator() == &allocator || present == &CountingAllocator::of_process();
  if (is_ours) allocator.keep_apart();
  return is_ours;
}

std::shared_ptr<void> large_block(std::size_t num_bytes) {
  void* const block = LargeBlockAllocator::of_process().take(num_bytes);
  return block == nullptr ? nullptr : std::shared_ptr<void>(block, &LargeBlockAllocator::free_block);
}

LargeBlockBytes large_block_bytes() { return LargeBlockAllocator::of_process().bytes(); }

}  // namespace tessera::intercept
