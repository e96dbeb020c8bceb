#pragma once

#include <tessera/intercept/saved_tensors.h>
#include <tessera/recompute/first_run.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "recompute/autocast_state.h"
#include "recompute/random_state.h"
#include "recompute/replay.h"
#include "recompute/saved_tensor.h"

namespace tessera::recompute {

/// One call of checkpoint(): what it takes to compute again the tensors that autograd did not keep.
///
/// Note [Recomputing without a backward in the backward]
/// The first run makes the graph that a plain call makes, and its outputs hang on it; only the tensors that its nodes
/// save are replaced by numbers, 0, 1, 2, ... in the order of saving. When a node asks for one of them in backward, the
/// function runs again with gradients enabled, saves again in the same order, and what it saves are the tensors that
/// were asked for. The second graph is dropped; nothing is ever sent through it. So there is one pass over one graph,
/// which contains the parameters and runs their hooks when it should: data parallelism needs to know nothing of this.
///
/// The nodes own the segment, through the hooks of what they saved. What was computed again belongs to the pass that
/// asked for it, and each tensor goes with its node, as it would have without us.
///
/// Thread-safety: nodes on different devices run on different threads, hence the lock. It is held while the function
/// runs: who needs the same tensors waits for them.
class Segment {
 public:
  Segment(const std::vector<at::Tensor>& inputs, RunAgain run_again);

  /// A tensor is saved by the first run. Returns its number.
  std::size_t note(const at::Tensor& tensor);
  /// The first run has ended; `drew` tells whether it called operators that draw random numbers. Throws ConfigError if
  /// it changed `inputs`, those of the constructor, in place.
  void complete(const std::vector<at::Tensor>& inputs, bool drew);
  /// A tensor of the first run, computed again unless the pass has it.
  at::Tensor tensor(std::size_t number);
  /// Its node is done with it.
  void forget(std::size_t number) noexcept;

 private:
  struct Input {
    intercept::SavedByHand tensor;  // so that a checkpoint around this one can drop it
    bool requires_grad;
    std::int64_t version;
  };

  std::shared_ptr<Replayed> replayed_of_this_pass();
  void replay(Replayed& replayed);
  void call_again(Replay& replay) const;
  void require_complete(const Replay& replay, bool stopped) const;
  std::vector<at::Tensor> unpacked_inputs() const;

  std::recursive_mutex mutex_;
  std::vector<Input> inputs_;
  RunAgain run_again_;
  AutocastState autocast_;
  // Note [Whose random numbers]
  // The CPU's generator is shared by all threads, so that it moved during the first run does not tell who moved it: the
  // function, or a thread that prepares data. Its state is put back for the second run if it moved at all. That both
  // runs drew the same is required of functions that called random operators, and of no others.
  std::optional<RandomState> random_;             // before the first run; none if nothing moved
  std::optional<std::size_t> random_hash_after_;  // of a function that draws
  bool is_complete_ = false;
  std::vector<SavedTensor> saved_;
  std::weak_ptr<Replayed> replayed_;
};

}  // namespace tessera::recompute
