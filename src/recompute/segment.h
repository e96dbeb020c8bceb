#pragma once

#include <tessera/intercept/run_point.h>
#include <tessera/intercept/saved_tensors.h>
#include <tessera/recompute/recompute.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "recompute/run_state.h"

namespace tessera::recomputation {

/// Tensors that were computed again, indexed by their number.
struct Replayed {
  struct Slot {
    at::Tensor tensor;  // undefined: not computed, or no longer needed
    std::int64_t version = 0;
  };
  std::vector<Slot> slots;
};

/// A description of a tensor that autograd saved and that was dropped: enough to check that the second run saves the
/// same one.
struct SavedTensor {
  explicit SavedTensor(const at::Tensor& tensor);

  /// "float [2, 3] on cpu".
  std::string text() const;
  /// Throws ConfigError unless `again` has the same sizes, dtype and device and, if the tensor requires a gradient, the
  /// same version.
  void require_same(const SavedTensor& again, std::size_t number) const;

  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  std::int64_t version;   ///< autograd's count of changes in place
  bool is_wanted = true;  ///< the node that saved it may still ask for it
};

/// Collects the tensors that autograd saves while a function runs again.
class Replay : public intercept::SavedTensorKeeper {
 public:
  /// Thrown through the function when all wanted tensors are computed. Not derived from std::exception, so that the
  /// function does not catch it by accident.
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

/// One call of recompute(): what is needed to compute the tensors again that autograd did not keep.
///
/// Note [Recomputing without a backward in the backward]
/// The first run builds the same graph as a plain call, and its outputs belong to that graph. Only the tensors that its
/// nodes save are replaced by numbers, 0, 1, 2, ... in the order of saving. When a node asks for one of them in
/// backward, the function runs again with gradients enabled and saves tensors in the same order: these are the tensors
/// that the nodes need. The second graph is dropped; no backward runs through it. So there is one pass over one graph,
/// which contains the parameters and runs their hooks at the right time. Data parallelism needs no special support.
///
/// The nodes own the segment, through the hooks of their saved tensors. Tensors that were computed again belong to the
/// pass that asked for them, and each is released with its node, as it would be in a plain call.
///
/// Thread-safety: nodes on different devices run on different threads, hence the lock. It is held while the function
/// runs, so another thread that needs the same tensors waits for them.
class Segment {
 public:
  Segment(const std::vector<at::Tensor>& inputs, RunAgain run_again);

  /// The first run saves a tensor. Returns its number.
  std::size_t note(const at::Tensor& tensor);
  /// The first run has ended. `drew`: it called operators that draw random numbers. Throws ConfigError if it changed
  /// `inputs`, which are those of the constructor, in place.
  void complete(const std::vector<at::Tensor>& inputs, bool drew);
  /// A tensor of the first run. Runs the function again unless this pass has the tensor already.
  at::Tensor tensor(std::size_t number);
  /// Its node is done with it.
  void forget(std::size_t number) noexcept;

 private:
  struct Input {
    intercept::SavedByHand tensor;  // so that an outer recompute() can drop it
    bool requires_grad;
    std::int64_t version;
  };

  std::shared_ptr<Replayed> replayed_of_this_pass();
  void replay(Replayed& replayed);
  void call_again(Replay& replay) const;
  void require_complete(const Replay& replay, bool stopped) const;
  std::vector<at::Tensor> unpacked_inputs() const;

  std::recursive_mutex mutex_;
  std::shared_ptr<const intercept::RunPoint> point_;  // where the function began; null: nothing depends on it
  std::vector<Input> inputs_;
  RunAgain run_again_;
  AutocastState autocast_;
  // Note [Whose random numbers]
  // All threads share the CPU's generator. If it advanced during the first run, either the function or another thread,
  // one that prepares data say, has drawn numbers. If it advanced at all, its state is restored for the second run. But
  // only functions that called random operators are required to draw the same numbers in both runs.
  std::optional<RandomState> random_;                 // before the first run; none if no generator advanced
  std::optional<std::uint64_t> random_digest_after_;  // of a function that draws
  bool is_complete_ = false;
  std::vector<SavedTensor> saved_;
  std::weak_ptr<Replayed> replayed_;
};

}  // namespace tessera::recomputation
