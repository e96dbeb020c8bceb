#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/manifest.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/options.h>
#include <tessera/mesh/ranks.h>
#include <tessera/shard/parallel_model.h>
#include <tessera/train/loader.h>
#include <tessera/train/sampler.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// How strict TrainingState::restore() is, and which names differ in the checkpoint.
struct RestoreOptions {
 public:
  using Names = std::map<std::string, std::string>;

  /// Parts that the checkpoint lacks stay as they are: for a model with new layers, say.
  TESSERA_ARG(bool, allow_missing) = false;
  /// Parts that only the checkpoint has are ignored: for a program without an optimizer, say.
  TESSERA_ARG(bool, allow_unexpected) = false;
  /// Restores all parameters and buffers of the model, and nothing else: optimizer, schedule, sampler and random
  /// numbers begin anew. For a step that was imported, or to train on with another optimizer.
  TESSERA_ARG(bool, weights_only) = false;
  /// Maps the name of a parameter or buffer here to its name in the checkpoint. Applies to the optimizer's state too.
  TESSERA_ARG(Names, rename);
};

}  // namespace tessera

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

class GradScaler;
class LrSchedule;

namespace train {
class StatePart;
}  // namespace train

/// What restore() reads from: a step of a checkpoint, or any other source that has a manifest and can fill slices.
struct StateSource {
  const Manifest& manifest;
  /// Writes the values of these slices, in place, by their groups and names in the source. Throws when it cannot.
  std::function<void(const std::vector<HeldSlice>& slices)> fill;
};

/// What restore() has done.
struct RestoreReport {
  std::int64_t step = 0;                ///< updates done when it was saved
  std::vector<std::string> missing;     ///< what stayed as it was; empty unless that was allowed
  std::vector<std::string> unexpected;  ///< what was left out; empty unless that was allowed
  std::vector<std::string> notes;       ///< how this run differs from the saved one, in words
};

/// The state that a run needs to go on as if it had never stopped. Its parts are named once, then saved and restored
/// together.
///
///   TrainingState state(world);
///   state.model(sharded).optimizer(optimizer).schedule(schedule).sampler(loader).value("best_loss", best_loss);
///   checkpoints.save(step, state.capture());
///   ...
///   checkpoints.load_newest([&](const SavedStep& saved) { state.restore(saved); });
///
/// Tensors lie in three groups: "model" under the model's own names, "optimizer" ("wte.weight/exp_avg") and "training"
/// (random states, the buckets of DDP and what its gradient hook remembers). Everything else is a value by name. None
/// of them says how the model was cut, so a run may go on with another number of ranks and another way to share the
/// model.
/// Of buffers, rank 0's are saved, as in training. Not saved: gradients, and options, since those of the program apply.
/// Requires: the objects that it was given outlive it; it is called between steps, on the training thread.
class TrainingState {
 public:
  /// For a single process.
  TrainingState();
  /// The ranks that save and restore together.
  explicit TrainingState(const Ranks& ranks);
  ~TrainingState();
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  /// Call it once, before optimizer(). Throws ConfigError for a second model.
  TrainingState& model(const ParallelModel& model);

  /// SGD, Adam, AdamW, Adagrad or RMSprop, built on the parameters of the model; their state and learning rates.
  TrainingState& optimizer(torch::optim::Optimizer& optimizer);
  TrainingState& schedule(LrSchedule& schedule);
  TrainingState& scaler(GradScaler& scaler);
  TrainingState& sampler(Sampler& sampler);
  template <class Batch>
  TrainingState& sampler(Loader<Batch>& loader) {
    return sampler([&loader] { return loader.state(); },
                   [&loader](const SamplerState& state) { loader.restore(state); });
  }
  /// A number or text of the program's own, the same on all ranks. Throws ConfigError for a name that is taken.
  TrainingState& value(const std::string& name, bool& value);
  TrainingState& value(const std::string& name, std::int64_t& value);
  TrainingState& value(const std::string& name, double& value);
  TrainingState& value(const std::string& name, std::string& value);

  /// What this rank holds. Parameters, buffers and the optimizer's tensors share memory with what is trained, unless
  /// they do not lie in row-major order: save or copy them before the next step.
  /// Collective: with DistributedModel, over its ranks. Throws ConfigError for an optimizer of another model.
  RankState capture() const;

  /// Sets all parts to what was saved. Throws ConfigError, with all names, when the saved state lacks a part or has one
  /// that this object does not; then nothing was changed. Throws StorageError on all ranks when one cannot read.
  /// Collective: over all ranks.
  RestoreReport restore(const SavedStep& step, const RestoreOptions& options = {});
  /// The same from another source.
  RestoreReport restore(const StateSource& source, const RestoreOptions& options = {});

 private:
  TrainingState& sampler(std::function<SamplerState()> get, std::function<void(const SamplerState&)> set);
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tessera
