#pragma once

#include <tessera/comm/world.h>
#include <tessera/mesh/ranks.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/shard/slice.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parity/models.h"

namespace tessera::testing {

/// One training, in one process or on the stages of a pipeline.
struct PipelineCase {
  std::string model;  ///< see make_parity_model
  std::string schedule = "1f1b";
  int num_chunks = 0;
  int num_micro_batches = 4;
  bool uses_adamw = true;
  torch::Dtype dtype = torch::kDouble;
  bool uses_autocast = false;  ///< to bfloat16
  int num_steps = 10;
  int dp = 1;
  int tp = 1;                                   ///< with the plan of the tests of tensor parallelism
  std::string sharding = "ddp";                 ///< along "dp": or a strategy of fully_shard()
  torch::DeviceType device_type = torch::kCPU;  ///< of a layout

  std::string text() const;
};

/// By name: losses, gradients of parameters, and the parameters and buffers at the end.
using Values = std::map<std::string, at::Tensor>;

/// One process that adds up the gradients of the same micro-batches.
Values train_alone(const PipelineCase& training);
/// The same on the ranks of an axis: what this rank has. Collective.
Values train_in_stages(const PipelineCase& training, const Ranks& ranks);

/// What a rank has of a gradient.
struct GradientPart {
  std::string name;  ///< as one process has it
  Slice slice;
  at::Tensor values;  ///< one-dimensional
};
struct LayoutValues {
  Values whole;  ///< the same on every rank: losses and norms, and parameters at the end
  std::vector<GradientPart> parts;
};
/// The same on the axes "dp", "tp" and "pp", the last one with all ranks that are left. Each rank of "dp" has the
/// micro-batches that follow those of the one before it. Collective.
LayoutValues train_in_layout(const PipelineCase& training, const World& world);

/// Relative to a tensor's largest value, of those that were found, and of which tensor. In single precision rounding
/// grows from step to step, so behind the first one small values are compared as if they were 1, and the norm of all
/// gradients as if it were 10.
std::pair<double, std::string> largest_difference(const PipelineCase& training, const Values& found,
                                                  const Values& expected);
std::pair<double, std::string> largest_difference(const PipelineCase& training, const LayoutValues& found,
                                                  const Values& expected);

/// How much a training may differ from one process.
inline double tolerance_of(const PipelineCase& training) { return training.dtype == torch::kDouble ? 1e-10 : 1e-5; }

}  // namespace tessera::testing
