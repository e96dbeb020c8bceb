#include "support/sim_device/allocators.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "support/sim_device/runtime.h"

namespace tessera::testing::sim {
namespace {

void free_pinned(void* address) {
  if (address) Runtime::get().free(address);
}

void free_block(void* address) {
  if (!address) return;
  Runtime& runtime = Runtime::get();
  const int device = runtime.device_of(address);
  const auto num_bytes = static_cast<std::int64_t>(runtime.free(address));
  if (num_bytes == 0) return;  // the process ends
  c10::reportMemoryUsageToProfiler(address, -num_bytes, runtime.bytes_in_use(device), settings().bytes_of_device,
                                   sim::device(device));
}

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t num_bytes) override {
    const int device = current_device();
    char* address = nullptr;
    if (num_bytes > 0) {
      Runtime& runtime = Runtime::get();
      address = runtime.allocate(device, runtime.queue(current_stream(device)), num_bytes);
      c10::reportMemoryUsageToProfiler(address, static_cast<std::int64_t>(num_bytes), runtime.bytes_in_use(device),
                                       settings().bytes_of_device, sim::device(device));
    }
    return {address, address, &free_block, sim::device(device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t num_bytes) const override {
    Runtime& runtime = Runtime::get();
    runtime.launch(runtime.queue(current_stream(-1)), "copy",
                   {{Span(from, num_bytes), false}, {Span(to, num_bytes), true}},
                   [to = runtime.for_kernels(to), from = runtime.for_kernels(from), num_bytes] {
                     std::memcpy(to, from, num_bytes);
                   });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    // As allocators of real devices do: what others lend to a storage is not theirs.
    if (memory.get_deleter() != &free_block) return;
    Runtime::get().record_use(memory.get(), Runtime::get().queue(stream));
  }
  /// Memory that was freed is active as long as other streams use it, and allocated no longer.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats stats;
    const Usage allocated = Runtime::get().allocated(device);
    stats.allocated_bytes[kAll].current = static_cast<std::int64_t>(allocated.now);
    stats.allocated_bytes[kAll].peak = static_cast<std::int64_t>(allocated.peak);
    stats.active_bytes[kAll].current = static_cast<std::int64_t>(Runtime::get().bytes_in_use(device));
    stats.active_bytes[kAll].peak = static_cast<std::int64_t>(Runtime::get().peak_bytes(device));
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex device) override { Runtime::get().reset_peak_bytes(device); }
};

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(std::size_t num_bytes) override {
    char* const address = num_bytes > 0 ? Runtime::get().allocate_pinned(num_bytes) : nullptr;
    return {address, address, &free_pinned, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }
  /// Copies keep the block themselves until they are over.
  bool record_event(void* /*address*/, void* /*context*/, c10::Stream /*stream*/) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

DeviceAllocator the_device_allocator;
REGISTER_ALLOCATOR(kSim, &the_device_allocator);

}  // namespace

c10::DeviceAllocator* device_allocator() { return &the_device_allocator; }

at::HostAllocator* pinned_allocator() {
  static auto* const instance = new PinnedAllocator;
  return instance;
}

}  // namespace tessera::testing::sim
