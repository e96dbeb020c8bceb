#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/shard/partition.h>
#include <tessera/shard/slice.h>
#include <tessera/shard/tensor_slice.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

/// Ranks that share a model.
struct ModelAxis {
  Communicator comm;
  bool divides;  ///< they hold different parts of some tensor; else all hold the same
};

/// The part of a parameter of the model that lies in one of the tensors that a rank trains.
struct ParameterPart {
  std::string name;  ///< of the model's parameter
  Slice slice;       ///< of the whole parameter; empty where this rank holds nothing of it
  Range held;        ///< where in the tensor that is trained
};

/// A tensor that an optimizer may be given.
struct TrainedTensor {
  std::string name;  ///< of the parameter, or of the unit whose parameters lie in it one behind the other
  at::Tensor tensor;
  /// What it holds. A tensor of the same shape, as in an optimizer's state, holds the same parts.
  std::vector<ParameterPart> parts;
  /// The axes of the model, by their place in its list, along which every rank holds the same elements of it and gets
  /// the same gradient.
  std::vector<std::size_t> replicated_over;
};

/// A part of a tensor of the model. Its values are one-dimensional. Exception: for a tensor that stays whole and does
/// not lie in row-major order, the values are that tensor itself.
struct StateSlice : TensorSlice {
  bool is_buffer = false;  ///< a buffer of the model, whole on every rank; rank 0's values count
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

/// A model on one rank. Each way to share a model implements it. Programs use ParallelModel, which documents the calls.
class ModelState {
 public:
  virtual ~ModelState() = default;

  virtual const std::shared_ptr<torch::nn::Module>& module() const = 0;
  virtual std::vector<ModelAxis> axes() const = 0;
  virtual std::vector<TrainedTensor> trained() const = 0;
  virtual std::vector<StateSlice> state_slices() const = 0;

  /// Drops the gradients of trained tensors that the program has cleared through the model, as model->zero_grad() does.
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
  /// Whether hold() keeps something whole that is a part otherwise.
  virtual bool is_held() const { return false; }
  /// Whether ranks have other parameters than their neighbours, as those on the stages of a pipeline.
  virtual bool has_stages() const { return false; }
  /// Throws ConfigError then: gradients are of parts.
  virtual void require_not_held() const {}
  /// From now on `prepare` is called with the tensor of a part before let_go() writes to it what a program wrote to the
  /// whole. For who keeps the memory of the parts.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): others keep it
  virtual void before_part_write(std::function<void(const at::Tensor& part)> /*prepare*/) {}
  /// Who shares the model along another axis too, over this one: handles of this state mean the model as that shares
  /// it. Null: nobody.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): likewise
  virtual void set_outer(std::weak_ptr<ModelState> /*outer*/) {}
  virtual std::shared_ptr<ModelState> outer() const { return nullptr; }
  /// Throws ConfigError where a use of a parameter would, for reasons that one rank may have alone.
  virtual void require_usable() {}
  /// What this rank refuses is refused on every rank of those that have other layers; null: nothing. Collective.
  virtual void refuse_together(const std::exception_ptr& fault) const {
    if (fault) std::rethrow_exception(fault);
  }
  /// Whether it cuts layers, so that others may share the model over it: stages, copies, shards.
  virtual bool cuts_layers() const { return false; }
  /// Ends hold() of the same options. Requires: hold() did not throw.
  virtual void let_go(const GatherOptions& options) noexcept { static_cast<void>(options); }
};

/// From now on, as long as the state lives, a ParallelModel made of its module uses this state. Otherwise a program
/// that passes the module alone would be treated as one process that has all of the model.
void note_shared(const std::shared_ptr<ModelState>& state);
/// The state that was noted for this module; null when the module is not shared. Does not find submodules.
std::shared_ptr<ModelState> find_shared(const torch::nn::Module& module);

/// The parameters of a model that this rank holds in one piece, each once, the same along all of `num_axes` axes.
std::vector<TrainedTensor> whole_parameters(const torch::nn::Module& model, std::size_t num_axes);
/// Its parameters and buffers.
std::vector<StateSlice> whole_state(const torch::nn::Module& model);
/// One-dimensional if the tensor lies in row-major order, else the tensor itself: values written to a copy would be
/// lost.
StateSlice whole_state(const std::string& name, const at::Tensor& tensor, bool is_buffer);
/// Throws ConfigError for a parameter that was cut before: `what` does not know which ranks hold the other parts.
void require_uncut(const torch::nn::Module& model, const std::string& what);

}  // namespace shard
}  // namespace tessera
