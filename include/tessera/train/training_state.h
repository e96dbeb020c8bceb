#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/manifest.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/mesh/ranks.h>
#include <tessera/shard/parallel_model.h>
#include <tessera/train/loader.h>
#include <tessera/train/restore_options.h>
#include <tessera/train/sampler.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

class GradScaler;
class LrSchedule;

namespace train {
class StatePart;
}  // namespace train

/// What restore() reads from: a step of a checkpoint, or whatever has a manifest and can fill slices.
struct StateSource {
  const Manifest& manifest;
  /// Writes the values of these slices, in place, by their groups and names there. Throws when it cannot.
  std::function<void(const std::vector<HeldSlice>& slices)> fill;
};

/// What restore() has done.
struct RestoreReport {
  std::int64_t step = 0;                ///< updates done when it was saved
  std::vector<std::string> missing;     ///< what stayed as it was; empty unless that was allowed
  std::vector<std::string> unexpected;  ///< what was left out; empty unless that was allowed
  std::vector<std::string> notes;       ///< what is not as in the run that was saved, in words
};

/// What a run must keep to go on as if it had never stopped: parts are named once, then saved and restored together.
///
///   TrainingState state(world);
///   state.model(sharded).optimizer(optimizer).schedule(schedule).sampler(loader).value("best_loss", best_loss);
///   checkpoints.save(step, state.capture());
///   ...
///   checkpoints.load_newest([&](const SavedStep& saved) { state.restore(saved); });
///
/// Tensors lie in three groups: "model" under the model's own names, "optimizer" ("wte.weight/exp_avg") and "training"
/// (random states, the buckets of DDP). Everything else is a value by name. None of them says how the model was cut, so
/// a run may go on with another number of ranks and another way to share the model.
/// Of buffers rank 0's count, as in training. Not kept: options (those of the program count), gradients, and what a
/// gradient hook remembers ("powersgd").
/// Requires: what it was given outlives it; calls between steps, on the thread that trains.
class TrainingState {
 public:
  /// One process alone.
  TrainingState();
  /// The ranks that save and restore together.
  explicit TrainingState(const Ranks& ranks);
  ~TrainingState();
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  /// One, and before the optimizer. Throws ConfigError for a second one.
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
  /// A number or text of the program's own, the same on all ranks. Throws ConfigError for a name that is there.
  TrainingState& value(const std::string& name, bool& value);
  TrainingState& value(const std::string& name, std::int64_t& value);
  TrainingState& value(const std::string& name, double& value);
  TrainingState& value(const std::string& name, std::string& value);

  /// What this rank holds. Parameters, buffers and the optimizer's tensors share memory with what is trained, unless
  /// they do not lie row by row: save or copy them before the next step.
  /// Collective: with DistributedModel, over its ranks. Throws ConfigError for an optimizer that is not of the model.
  RankState capture() const;

  /// All parts are as they were saved. Throws ConfigError, with all names, when the saved state lacks something or has
  /// something that nobody asked for, and then nothing was changed; StorageError on all ranks when one cannot read.
  /// Collective: over all ranks.
  RestoreReport restore(const SavedStep& step, const RestoreOptions& options = {});
  /// The same from elsewhere.
  RestoreReport restore(const StateSource& source, const RestoreOptions& options = {});

 private:
  TrainingState& sampler(std::function<SamplerState()> get, std::function<void(const SamplerState&)> set);
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tessera
