#pragma once

#include <tessera/checkpoint/held_slice.h>

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/state/model_tensors.h"
#include "train/state/optimizer_kind.h"
#include "train/state/saved_names.h"

namespace tessera::train {

/// What an optimizer keeps, by the names of the model's parameters: tensors as slices "wte.weight/exp_avg", counters as
/// values "optimizer/wte.weight/step", a learning rate for each group. So another layout reads what this one wrote.
///
/// Note [State by parameter]
/// The row of a unit has one counter for all of its parameters. It is written for each of them; who reads it into a row
/// asks for the same number at all of them. A parameter for which the optimizer keeps nothing yet says so ("is_new"):
/// else what is new could not be told from what was lost.
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
  /// A tensor that is stepped.
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
  /// Whether it is as the optimizer was built with it.
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
