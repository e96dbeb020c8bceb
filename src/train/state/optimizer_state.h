#pragma once

#include <tessera/checkpoint/held_slice.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/state/saved_names.h"

namespace tessera::train {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

/// A tensor that an optimizer keeps for each parameter, of the parameter's shape.
struct StateTensor {
  std::string name;
  std::function<at::Tensor&(OptimizerParamState& state)> of;
  /// Whether an optimizer with these options keeps it.
  std::function<bool(const OptimizerOptions& options)> is_kept;
};

/// What a kind of optimizer keeps for each parameter.
struct OptimizerKind {
  std::string name;
  std::function<std::unique_ptr<OptimizerParamState>()> make;
  /// The counter of steps; empty for a kind without one.
  std::function<std::int64_t&(OptimizerParamState& state)> step;
  std::vector<StateTensor> tensors;
  /// The optimizer makes the state of all parameters when it is built, and relies on it.
  bool begins_with_state = false;

  bool keeps_anything(const OptimizerOptions& options) const;
};

/// SGD, Adam, AdamW (LibTorch's and ours), Adagrad and RMSprop, and what is derived from them.
/// Throws ConfigError for any other.
OptimizerKind kind_of(const torch::optim::Optimizer& optimizer);

/// What an optimizer keeps, by the names of the model's parameters: tensors as slices "wte.weight/exp_avg", counters as
/// values "optimizer/wte.weight/step", a learning rate for each group. So another layout reads what this one wrote.
///
/// Note [State by parameter]
/// The flat parameter of a unit has one counter for all of its parameters. It is written for each of them; when it is
/// read into a flat parameter, the numbers of all of them must be equal. A parameter for which the optimizer keeps
/// nothing yet is marked ("is_new"): otherwise a new one could not be distinguished from a lost one.
class OptimizerState {
 public:
  /// Requires: both outlive it. Throws ConfigError for a parameter that is none of the model's.
  OptimizerState(torch::optim::Optimizer& optimizer, const PartsByTensor& parts);

  void capture(RankState& into) const;

  /// Looks up what a saved state has; changes nothing.
  void plan(SavedNames& names);
  /// Makes states as planned, with their counters and the learning rates. Returns the slices to be filled.
  std::vector<HeldSlice> apply(const SavedNames& names);

 private:
  /// A tensor that the optimizer updates.
  struct Entry {
    at::Tensor tensor;
    std::vector<ParameterPart> parts;
    std::size_t group;
    // As planned:
    bool has_state = false;
    std::int64_t step = 0;
  };

  const OptimizerOptions& options_of(const Entry& entry) const;
  OptimizerParamState* state_of(const Entry& entry) const;
  /// Whether it is still as the optimizer's constructor made it.
  bool is_untouched(OptimizerParamState& state) const;
  bool has_saved_state(const SavedNames& names, const std::string& saved) const;
  void plan(Entry& entry, SavedNames& names) const;
  void plan_saved(Entry& entry, SavedNames& names) const;
  void apply(const Entry& entry, const SavedNames& names, std::vector<HeldSlice>& slices);

  torch::optim::Optimizer& optimizer_;
  OptimizerKind kind_;
  std::vector<Entry> entries_;
  std::vector<std::optional<double>> rates_;  // as planned, of each group
};

}  // namespace tessera::train
