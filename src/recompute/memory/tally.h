#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace tessera::recomputation {

/// Counts what a model's graphs keep. Memory counts once, however many tensors lie in it. Thread-safety: any thread.
class Tally {
 public:
  struct Counts {
    std::int64_t kept_bytes = 0;   ///< at present
    std::int64_t num_kept = 0;     ///< memories, at present
    std::int64_t num_dropped = 0;  ///< tensors, since the start
    std::int64_t num_again = 0;    ///< operators that ran again, since the start
  };

  void add(const void* memory, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (++users_[memory] > 1) return;
    counts_.kept_bytes += bytes;
    ++counts_.num_kept;
  }
  void remove(const void* memory, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = users_.find(memory);
    if (--found->second > 0) return;
    users_.erase(found);
    counts_.kept_bytes -= bytes;
    --counts_.num_kept;
  }
  void drop() {
    const std::lock_guard lock(mutex_);
    ++counts_.num_dropped;
  }
  void run_again(std::int64_t count) {
    const std::lock_guard lock(mutex_);
    counts_.num_again += count;
  }
  Counts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::int64_t> users_;
  Counts counts_;
};

/// A tensor that is kept for backward, counted. Throws when it was changed in place since.
class Kept {
 public:
  Kept() = default;
  /// `tally`: null for what is there anyway, as parameters are.
  Kept(at::Tensor tensor, std::shared_ptr<Tally> tally);
  ~Kept() { release(); }
  Kept(Kept&& other) noexcept;
  Kept& operator=(Kept&& other) noexcept;

  /// Throws ConfigError when it was changed in place since.
  const at::Tensor& get() const;
  const at::Tensor& tensor() const { return tensor_; }
  void release();

 private:
  at::Tensor tensor_;
  std::uint32_t version_ = 0;
  const void* memory_ = nullptr;
  std::int64_t bytes_ = 0;
  std::shared_ptr<Tally> tally_;
};

/// Where its numbers lie; null for tensors that have no such place.
const c10::StorageImpl* memory_of(const at::Tensor& tensor);
/// Autograd's count of changes in place; 0 where nothing counts.
std::uint32_t version_of(const at::Tensor& tensor);

}  // namespace tessera::recomputation
