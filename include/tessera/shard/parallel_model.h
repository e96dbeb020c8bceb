#pragma once

#include <tessera/shard/model_state.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

class ParallelModel;

/// While one lives, backward passes add to the local gradients and nothing is averaged: for gradient accumulation. The
/// first pass after it averages the accumulated gradients.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(const ParallelModel& model);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<shard::ModelState> model_;
};

/// While one lives, gradients are promised: any number of backward passes, in any order, add to the local gradients.
/// The gradient of a parameter is averaged when the program says that it is complete:
///
///   auto promised = model.promise_gradients();
///   for (const auto& batch : batches) loss(net->forward(batch)).backward();
///   promised.complete(net->head->parameters());  // averaged while more is computed
///   for (const auto& later : weight_gradients) later();
///   promised.finish();
///
/// For programs that do not know which pass is the last, and for schedules that compute some gradients later. While one
/// lives, no optimizer may step, nothing may be clipped, and no parameter may be frozen or unfrozen.
class [[nodiscard]] PromisedGradients {
 public:
  explicit PromisedGradients(const ParallelModel& model);
  /// Without finish(), as when an exception unwinds the stack, all gradients of the model are dropped.
  ~PromisedGradients();
  PromisedGradients(const PromisedGradients&) = delete;
  PromisedGradients& operator=(const PromisedGradients&) = delete;

  /// The gradients of these parameters of the module are complete; parameters that require none may be among them.
  /// Starts to average them, a bucket or a unit at a time, while the program computes on. Collective: the same
  /// parameters on every rank. Throws ConfigError for a tensor that is no parameter.
  void complete(const std::vector<at::Tensor>& parameters);
  /// The same for all parameters that were not named. Afterwards gradients are averages, as after a backward.
  /// Collective. A second call does nothing.
  void finish();

 private:
  std::shared_ptr<shard::ModelState> model_;
  bool finished_ = false;
};

/// While one lives, parameters are whole on this rank.
class [[nodiscard]] Whole {
 public:
  explicit Whole(const ParallelModel& model, const GatherOptions& options = {});
  ~Whole();
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;

 private:
  std::shared_ptr<shard::ModelState> model_;
  GatherOptions options_;
};

/// A model that is trained, however it is shared: a plain module, or the result of distribute() or fully_shard().
/// A handle: cheap to copy. The model itself is used as before; it stays shared as long as a copy of the handle lives.
///
/// Functions that need all of a model take a ParallelModel: clip_grad_norm(), count_parameters(), GradScaler,
/// TrainingState. So a program that is written for it does not depend on how its model is shared.
/// Thread-safety: only the thread that trains the model may use it.
class ParallelModel {
 public:
  /// If distribute() or fully_shard() shares the module, the handle of that shared model; else a model that this rank
  /// has alone. Throws ConfigError for a null pointer.
  ParallelModel(const std::shared_ptr<torch::nn::Module>& model);  // NOLINT: meant to convert
  template <class Model>
    requires std::is_convertible_v<Model*, torch::nn::Module*>
  ParallelModel(const std::shared_ptr<Model>& model)  // NOLINT: meant to convert
      : ParallelModel(std::shared_ptr<torch::nn::Module>(model)) {}
  /// As above for the holders that TORCH_MODULE makes.
  template <class Holder>
    requires requires(const Holder& holder) { std::shared_ptr<torch::nn::Module>(holder.ptr()); }
  ParallelModel(const Holder& model)  // NOLINT: meant to convert
      : ParallelModel(std::shared_ptr<torch::nn::Module>(model.ptr())) {}
  explicit ParallelModel(std::shared_ptr<shard::ModelState> state);

  const torch::nn::Module& module() const { return *state_->module(); }
  /// The ranks that share it, along each axis; none for a plain module. The same on all these ranks.
  /// Throws ConfigError if these ranks together hold only a part of the model.
  std::vector<ModelAxis> axes() const { return model_state()->axes(); }

  /// The tensors that an optimizer may be given, each once: parameters of the model, or this rank's parts of them,
  /// including those that require no gradient at present. On every rank the same names in the same order.
  std::vector<TrainedTensor> trained() const { return model_state()->trained(); }
  /// The tensors of those: what to build an optimizer on.
  std::vector<at::Tensor> parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;

  /// What this rank holds of each parameter and buffer, in the same order on every rank; some slices may be empty.
  /// Shares memory with the model. Throws ConfigError inside a gather() that writes.
  std::vector<StateSlice> state_slices() const { return model_state()->state_slices(); }
  /// Call it before these slices are written to by pointer, as when files are read into them; operators that write need
  /// no such call. Releases gathered parameters. Throws ConfigError when a `gather()` lives. Blocks: until no rank
  /// reads the memory that will change. Requires: between a backward and the next forward.
  void before_write() const { model_state()->before_write(); }
  /// Call it when all is written.
  void after_write() const { model_state()->after_write(); }

  /// `{ const auto guard = model.no_sync(); net->forward(x).backward(); }`: for all micro-batches of a step but the
  /// last.
  NoSync no_sync() const { return NoSync(*this); }
  /// Gradients of several passes that are averaged when the program says so. Throws ConfigError in reproducible mode,
  /// with `static_graph` and inside `join()`.
  PromisedGradients promise_gradients() const { return PromisedGradients(*this); }
  /// Every rank takes rank 0's buffers. Call it before evaluating or saving on a rank other than 0. Collective.
  void sync_buffers() const { model_state()->sync_buffers(); }
  /// Parameters are whole as long as the object lives, for one rank that evaluates or exports alone, and for code that
  /// reads them by pointer. Values that operators write to them are kept, as outside of gather(). Writing by pointer
  /// needs `write_back`; without it, the next call that uses the model throws. While the object lives, no optimizer may
  /// step. Collective, both where it is made and where it ends.
  Whole gather(const GatherOptions& options = {}) const { return Whole(*this, options); }

  /// As the model is shared now: along other axes too, if that was asked for after this handle was made.
  std::shared_ptr<shard::ModelState> model_state() const;

 private:
  std::shared_ptr<shard::ModelState> state_;
};

/// The number of elements of all parameters of the whole model, including frozen ones, however many ranks share it. A
/// parameter that the model holds in several places counts once.
std::int64_t count_parameters(const ParallelModel& model);

}  // namespace tessera
