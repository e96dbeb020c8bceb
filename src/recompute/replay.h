#pragma once

#include <tessera/intercept/saved_tensors.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "recompute/saved_tensor.h"

namespace tessera::recompute {

/// Tensors that were computed again, by their number.
struct Replayed {
  struct Slot {
    at::Tensor tensor;  // undefined: not computed, or no longer needed
    std::int64_t version = 0;
  };
  std::vector<Slot> slots;
};

/// Takes in what autograd saves while a function runs again.
class Replay : public intercept::SavedTensorKeeper {
 public:
  /// Thrown through the function when all is there that is wanted. No std::exception: the function has no business with
  /// it.
  struct Stop {
    const Replay* replay;
  };

  /// `may_stop`: the function need not run to its end.
  Replay(const std::vector<SavedTensor>& expected, bool may_stop, Replayed& replayed);

  std::unique_ptr<intercept::SavedTensorSlot> make_slot() override;
  void take(const at::Tensor& tensor);
  std::size_t num_taken() const { return num_taken_; }

 private:
  const std::vector<SavedTensor>& expected_;
  Replayed& replayed_;
  bool may_stop_;
  bool stopped_ = false;
  std::size_t last_wanted_ = 0;
  std::size_t num_taken_ = 0;
};

}  // namespace tessera::recompute
