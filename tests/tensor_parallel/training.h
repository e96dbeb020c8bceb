#pragma once

#include <tessera/mesh/ranks.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parity/models.h"

namespace tessera::testing {

/// One training, in one process or on several ranks.
struct TensorCase {
  std::string model;  ///< see make_parity_model
  bool uses_adamw = true;
  torch::Dtype dtype = torch::kDouble;
  bool uses_autocast = false;  ///< to bfloat16
  int num_steps = 10;
};

/// By name: outputs, gradients of inputs and parameters, and the parameters and buffers at the end; all whole. In
/// single precision outputs and gradients are those of the first step: later ones have added up the rounding of all
/// steps before.
using Values = std::map<std::string, at::Tensor>;

Values train_alone(const TensorCase& training);
/// The same on the ranks of an axis. Collective.
Values train_cut(const TensorCase& training, const Ranks& ranks);

/// Relative to a tensor's largest value, and of which tensor.
std::pair<double, std::string> largest_difference(const Values& found, const Values& expected);
/// Of all values together, relative to their length.
double distance(const Values& found, const Values& expected);

/// How much a training may differ from one process.
inline double tolerance_of(const TensorCase& training) { return training.dtype == torch::kDouble ? 1e-10 : 1e-5; }

}  // namespace tessera::testing
