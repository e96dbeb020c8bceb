#include <tessera/intercept/memory_count.h>

#include "intercept/counters.h"
#include "intercept/counting_allocator.h"

namespace tessera::intercept {

MemoryCount::MemoryCount() : counters_(std::make_shared<Counters>()) {
  CountingAllocator::of_process().start(counters_);
}

MemoryCount::~MemoryCount() { CountingAllocator::of_process().stop(); }

std::int64_t MemoryCount::live_bytes() const { return counters_->live; }

std::int64_t MemoryCount::peak_bytes() const { return counters_->peak; }

void MemoryCount::reset_peak() { counters_->peak = live_bytes(); }

}  // namespace tessera::intercept
