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
/// first pass after it averages all that has come together.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(const ParallelModel& model);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<shard::ModelState> model_;
};

/// While one lives, gradients are promised: backward passes add to the local gradients, any number of them and in any
/// order, and a parameter's are averaged when the program says that it has them all:
///
///   auto promised = model.promise_gradients();
///   for (const auto& batch : batches) loss(net->forward(batch)).backward();
///   promised.complete(net->head->parameters());  // averaged while more is computed
///   for (const auto& later : weight_gradients) later();
///   promised.finish();
///
/// For who does not know which pass is the last, and for schedules that compute some gradients later. Meanwhile no
/// optimizer may step, nothing may be clipped, and what is trained stays the same.
class [[nodiscard]] PromisedGradients {
 public:
  explicit PromisedGradients(const ParallelModel& model);
  /// Without finish(), as when an exception is on its way, all gradients of the model are dropped.
  ~PromisedGradients();
  PromisedGradients(const PromisedGradients&) = delete;
  PromisedGradients& operator=(const PromisedGradients&) = delete;

  /// All gradients of these parameters of the module have come; those that require none may be among them. Their
  /// averages begin, a bucket or a unit at a time, and go on while the program computes. Collective: the same
  /// parameters on every rank. Throws ConfigError for a tensor that is no parameter.
  void complete(const std::vector<at::Tensor>& parameters);
  /// The same of all that were not named. Gradients are averages then, as after a backward. Collective. A second call
  /// does nothing.
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

/// A model that is trained, whoever shares it and however: a module as it is, what distribute() or fully_shard() gives.
/// A handle: cheap to copy. The model itself is used as before; it stays shared as long as a copy of the handle lives.
///
/// What needs all of a model is a function of this: clip_grad_norm(), count_parameters(), GradScaler, TrainingState. So
/// a program that is written for it does not know how its model is shared.
/// Thread-safety: the thread that trains the model.
class ParallelModel {
 public:
  /// One that this rank has alone; or, of a module that distribute() or fully_shard() shares, that one. Throws
  /// ConfigError for a null pointer.
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
  /// The ranks that share it, along each axis; none for a module as it is. The same on all of them.
  /// Throws ConfigError for a model of which these ranks together have but a part.
  std::vector<ModelAxis> axes() const { return state_->axes(); }

  /// What an optimizer may be given, each once: parameters of the model, or this rank's parts of them, with those that
  /// require no gradient now. On every rank the same names in the same order.
  std::vector<TrainedTensor> trained() const { return state_->trained(); }
  /// The tensors of those: what to build an optimizer on.
  std::vector<at::Tensor> parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;

  /// What this rank holds of each parameter and buffer, in an order that is the same on every rank; of some perhaps
  /// nothing. Shares memory with the model. Throws ConfigError inside a gather() that writes.
  std::vector<StateSlice> state_slices() const { return state_->state_slices(); }
  /// Before those are written to by pointer, as files are read into them; operators that write need no such call.
  /// What was gathered is let go. Throws ConfigError when a `gather()` lives. Blocks: until no rank reads what will
  /// change. Requires: between a backward and the next forward.
  void before_write() const { state_->before_write(); }
  /// All of it is written.
  void after_write() const { state_->after_write(); }

  /// `{ const auto guard = model.no_sync(); net->forward(x).backward(); }`: for all micro-batches of a step but the
  /// last.
  NoSync no_sync() const { return NoSync(*this); }
  /// Gradients of several passes, averaged when the program says so. Throws ConfigError in reproducible mode, with
  /// `static_graph`, inside `join()` and for one block of FullySharded.
  PromisedGradients promise_gradients() const { return PromisedGradients(*this); }
  /// Every rank takes rank 0's buffers: before evaluating or saving on a rank other than 0. Collective.
  void sync_buffers() const { state_->sync_buffers(); }
  /// Parameters are whole as long as the object lives, for one rank that evaluates or exports alone, and for code that
  /// reads them by pointer. What operators write to them stays, here as everywhere; what is written by pointer needs
  /// `write_back`, and without it is refused by the next call that uses the model. Meanwhile no optimizer may step.
  /// Collective, the beginning and the end.
  Whole gather(const GatherOptions& options = {}) const { return Whole(*this, options); }

  const std::shared_ptr<shard::ModelState>& model_state() const { return state_; }

 private:
  std::shared_ptr<shard::ModelState> state_;
};

/// Elements of the parameters of the whole model, frozen ones too, however many ranks share it; one that the model
/// holds in several places counts once.
std::int64_t count_parameters(const ParallelModel& model);

}  // namespace tessera
