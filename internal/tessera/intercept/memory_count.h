#pragma once

#include <cstdint>
#include <memory>

namespace tessera::intercept {

/// Counts the bytes of the CPU tensors that any thread creates while it lives, and notices when they are freed, even
/// after its end. Tensors that existed before, and memory that a group lends (MemoryScope), are not counted. Sizes are
/// those that LibTorch requests from its allocator.
/// Requires: the only one of the process, made while no MemoryScope is open. Costs a lock and an entry in a
/// table for each tensor.
/// Thread-safety: its numbers may be read from any thread.
class MemoryCount {
 public:
  MemoryCount();
  ~MemoryCount();
  MemoryCount(const MemoryCount&) = delete;
  MemoryCount& operator=(const MemoryCount&) = delete;

  std::int64_t live_bytes() const;
  /// The most that lived at a time, since the start or the last reset.
  std::int64_t peak_bytes() const;
  void reset_peak();

  struct Counters;

 private:
  std::shared_ptr<Counters> counters_;
};

}  // namespace tessera::intercept
