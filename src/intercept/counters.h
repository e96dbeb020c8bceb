#pragma once

#include <tessera/intercept/memory_count.h>

#include <atomic>
#include <cstdint>

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

}  // namespace tessera::intercept
