#pragma once

#include <tessera/checkpoint/held_slice.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

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

  /// Memory of one copy; `pinned`: which devices reach by themselves. It is free again when its last owner is
  /// destroyed.
  /// Blocks: until one is free.
  std::shared_ptr<std::byte> take(std::size_t num_bytes, bool pinned);

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }  // NOLINT: from aligned_alloc
  };
  struct Copy {
    std::unique_ptr<std::byte, Free> memory;
    at::Tensor pinned;
    std::size_t capacity = 0;  // of that of the two that is there
    bool taken = false;

    void allocate(std::size_t num_bytes, bool is_pinned);
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
  std::vector<std::span<const std::byte>> bytes;         ///< of each part
  std::shared_ptr<std::byte> copy;                       ///< the memory that they lie in; null: that of the parts
  std::vector<std::shared_ptr<c10::Event>> copied_from;  ///< devices that may be copying still

  /// Requires: the parts are on the host, and stay as they are.
  static SaveSources of(const std::vector<at::Tensor>& parts);
  /// Parts on the host are copied when it returns. What is on a device is copied on a stream of its own, behind all
  /// that was launched before and before all that is launched later: `wait()` before the bytes are read.
  /// Blocks: until there is memory for a copy.
  static SaveSources copied(const std::vector<at::Tensor>& parts, const CopyLayout& layout, Staging& staging);

  void wait() const;
};

}  // namespace tessera::checkpoints
