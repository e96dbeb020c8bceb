#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/shard/partition.h>
#include <tessera/shard/slice.h>
#include <tessera/shard/tensor_slice.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

/// Ranks that share a model.
struct ModelAxis {
  Communicator comm;
  bool divides;  ///< they hold different parts of some tensor; else each holds what the others hold
};

/// What one of the tensors that a rank trains holds of a parameter of the model.
struct ParameterPart {
  std::string name;  ///< of the model's parameter
  Slice slice;       ///< of the whole parameter; empty where this rank holds nothing of it
  Range held;        ///< where in the tensor that is trained
};

/// A tensor that an optimizer may be given.
struct TrainedTensor {
  std::string name;  ///< of the parameter, or of the unit whose parameters lie in it one behind the other
  at::Tensor tensor;
  /// What it holds, and so what a tensor of its shape holds, as those of an optimizer's state.
  std::vector<ParameterPart> parts;
  /// The axes of the model, by their place in its list, along which every rank holds the same elements of it and gets
  /// the same gradient.
  std::vector<std::size_t> replicated_over;
};

/// A part of a tensor of the model. Its values are one-dimensional, but for a tensor that stays whole and does not lie
/// row by row in memory: that one itself.
struct StateSlice : TensorSlice {
  bool is_buffer = false;  ///< of the model, whole on every rank: rank 0's counts
};

/// What gather() makes whole.
struct GatherOptions {
  /// The parameters of this part of the model; null: of all of it. With them come those of their units.
  TORCH_ARG(std::shared_ptr<torch::nn::Module>, module) = nullptr;
  /// What is written to the parameters stays: every rank keeps what it wrote to its own part of them, so write the same
  /// on all. Needs memory for all that is gathered on every rank, also with `shared_copy`.
  TORCH_ARG(bool, write_back) = false;
};

namespace shard {

/// A model on one rank, as whoever shares it implements it. Programs use ParallelModel, which says what the calls mean.
class ModelState {
 public:
  virtual ~ModelState() = default;

  virtual const std::shared_ptr<torch::nn::Module>& module() const = 0;
  virtual std::vector<ModelAxis> axes() const = 0;
  virtual std::vector<TrainedTensor> trained() const = 0;
  virtual std::vector<StateSlice> state_slices() const = 0;

  /// `grad()` of what is trained becomes what the program has left there: what it cleared by the model is gone.
  virtual void settle_gradients() {}
  virtual void before_write() {}
  virtual void after_write() {}
  virtual void enter_no_sync() {}
  virtual void leave_no_sync() {}
  virtual void promise_gradients() {}
  virtual void complete_gradients(const std::vector<at::Tensor>& parameters) { static_cast<void>(parameters); }
  virtual void finish_gradients() {}
  /// After promise_gradients(), instead of finish_gradients() or when that has thrown.
  virtual void break_promise() noexcept {}
  virtual void sync_buffers() {}
  virtual void hold(const GatherOptions& options) { static_cast<void>(options); }
  /// What hold() was given. Requires: that did not throw.
  virtual void let_go(const GatherOptions& options) noexcept { static_cast<void>(options); }
};

/// From now on, as long as the state lives, a ParallelModel of its module is this one: who passes the module alone must
/// not be taken for one process that has all of it.
void note_shared(const std::shared_ptr<ModelState>& state);
/// That one; null when nobody shares the module. Not for its parts.
std::shared_ptr<ModelState> find_shared(const torch::nn::Module& module);

/// The parameters of a model that this rank holds in one piece, each once, the same along all of `num_axes` axes.
std::vector<TrainedTensor> whole_parameters(const torch::nn::Module& model, std::size_t num_axes);
/// Its parameters and buffers.
std::vector<StateSlice> whole_state(const torch::nn::Module& model);
/// In a row where it lies so; else as it is: a copy would be taken for the tensor itself, and what is written to it
/// lost.
StateSlice whole_state(const std::string& name, const at::Tensor& tensor, bool is_buffer);
/// Throws ConfigError for a parameter that somebody has cut before: `what` needs to know who has the other parts.
void require_uncut(const torch::nn::Module& model, const std::string& what);

}  // namespace shard
}  // namespace tessera
