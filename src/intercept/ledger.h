#pragma once

#include <tessera/intercept/thread_memory.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::intercept {

std::string no_memory_text(std::size_t num_bytes, const MemoryBytes& live, const std::string& owner,
                           const std::string& advice);

/// What one thread's memory is used for.
/// Thread-safety: all functions; the members belong to the thread.
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

  /// What to say when there is no memory for so many bytes.
  std::string why_no_memory(std::size_t num_bytes) const { return no_memory_text(num_bytes, live(), owner, advice); }

  std::string owner = "this thread";
  std::string advice;
  MemoryKind kind_of_new = MemoryKind::kActivations;
  bool marks = false;
  std::vector<const void*> marked;  // blocks that were made while it marks; some are gone by now

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

}  // namespace tessera::intercept
