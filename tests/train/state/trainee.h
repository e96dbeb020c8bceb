#pragma once

#include <tessera/comm/world.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/train/training_state.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::testing {

class MemoryStep;

/// A model with all that makes saving hard: tied and frozen parameters, buffers that drift apart on the ranks.
struct Trainee : torch::nn::Module {
  explicit Trainee(bool feels_drift);
  at::Tensor forward(const at::Tensor& x);

  // Registered in another order than they are used in, so that the reducer learns something.
  torch::nn::Linear last{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::Linear middle{nullptr};
  at::Tensor tied;
  at::Tensor frozen;
  at::Tensor seen;
  at::Tensor drift;

 private:
  bool feels_drift_;
};

using Weights = std::map<std::string, at::Tensor>;

/// How a model is shared, by name. Beside these, "fp32" after one of them trains in float, and "ddp int8" and
/// "ddp powersgd" send less.
const std::vector<std::string>& trainee_variants();
/// Whether it is computed in float: then inputs are too.
bool is_in_float(const std::string& variant);
/// Whether it works with so many ranks.
bool fits(const std::string& variant, int num_ranks);
const std::vector<std::string>& trainee_optimizers();

/// A model as a variant shares it.
struct SharedTrainee {
  /// Collective. `variant` "alone": no other rank is known.
  SharedTrainee(const World& world, const std::string& variant, bool feels_drift);

  void register_in(TrainingState& state) const;
  /// All parameters, whole, by name. Collective.
  Weights weights() const;

  std::shared_ptr<Trainee> model;
  std::optional<DistributedModel> ddp;
  std::optional<ShardedModel> sharded;
  std::vector<at::Tensor> trained;  ///< for an optimizer
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<at::Tensor>& parameters);

/// How many pieces the batch of a step is cut into, over all ranks.
int num_parts(const std::string& variant, int num_ranks);

/// A training with data that come from the number of the step.
class TraineeRun {
 public:
  /// Collective.
  TraineeRun(const World& world, const std::string& variant, const std::string& optimizer, bool feels_drift = true);

  /// `num_steps` more. Collective.
  void train(int num_steps);
  Weights weights() const { return shared_.weights(); }
  TrainingState& state() { return *state_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  const DistributedModel& ddp() const { return *shared_.ddp; }
  std::int64_t step() const { return step_; }

 private:
  void backward(int part);

  World world_;
  std::string variant_;
  SharedTrainee shared_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<TrainingState> state_;
  std::int64_t step_ = 0;
};

/// The first `num_steps` of a run, and what is kept of it then. Collective.
void train_and_save(const World& world, const std::string& variant, const std::string& optimizer, int num_steps,
                    MemoryStep& step, bool feels_drift = true);

}  // namespace tessera::testing
