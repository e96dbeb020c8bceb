#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  /// The counter of steps; empty for one that counts none.
  std::function<std::int64_t&(OptimizerParamState& state)> step;
  std::vector<StateTensor> tensors;
  /// The optimizer makes the state of all parameters when it is built, and relies on it.
  bool begins_with_state = false;

  bool keeps_anything(const OptimizerOptions& options) const;
};

/// SGD, Adam, AdamW (LibTorch's and ours), Adagrad and RMSprop, and what is derived from them.
/// Throws ConfigError for any other.
OptimizerKind kind_of(const torch::optim::Optimizer& optimizer);

}  // namespace tessera::train
