#pragma once

#include <tessera/checkpoint/held_slice.h>

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "checkpoint/plan/save_plan.h"
#include "checkpoint/plan/write_extent.h"

namespace tessera::checkpoints {

/// Memory for copies of the bytes that are being saved: at most `max_copies` at once, reused by later saves.
/// Thread-safety: all members may be called from any thread.
class Staging {
 public:
  explicit Staging(std::size_t max_copies) : copies_(max_copies) {}

  /// Memory of one copy. It is free again when its last owner is destroyed.
  /// Blocks: until one is free.
  std::shared_ptr<std::byte> take(std::size_t num_bytes);

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }  // NOLINT: from aligned_alloc
  };
  struct Copy {
    std::unique_ptr<std::byte, Free> memory;
    std::size_t capacity = 0;
    bool taken = false;
  };
  void give_back(Copy& copy);

  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<Copy> copies_;
};

/// The elements that a rank writes, of each of its planned slices. They share the memory of `state`.
std::vector<at::Tensor> written_parts(const SavePlan& plan, int rank, const RankState& state);

/// Where the bytes of these parts are while they are written.
struct SaveSources {
  std::vector<std::span<const std::byte>> bytes;  ///< of each part
  std::shared_ptr<std::byte> copy;                ///< the memory that they lie in; null: that of the parts

  /// Requires: the parts are on the host, and stay as they are.
  static SaveSources of(const std::vector<at::Tensor>& parts);
  /// Blocks: until the copy is made, and before that until there is memory for one.
  static SaveSources copied(const std::vector<at::Tensor>& parts, const CopyLayout& layout, Staging& staging);
};

}  // namespace tessera::checkpoints
