#pragma once

#include <tessera/comm/world.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/random_models/random_case.h"

namespace tessera::testing {

/// A random tree, a random plan to cut it, and a random training.
struct TreeCase {
  enum class Optimizer : std::uint8_t { kSgd, kAdamW, kFusedAdamW };

  RandomCase steps;  ///< how its steps go; how it shards is not used
  TensorPlan plan;
  TensorParallelOptions options;
  Optimizer optimizer = Optimizer::kSgd;
  bool clips_with_torch = false;  ///< otherwise with Tessera's clip_grad_norm()

  std::string text() const;
};

TreeCase make_tree_case(std::uint64_t seed);

/// Something that a training gives, whole.
struct TreeValue {
  std::string name;
  at::Tensor tensor;  ///< undefined: there is no such gradient
  double scale = 0;   ///< what a difference is judged by
};
/// Losses, outputs of evaluations, gradients and norms of each step, parameters and buffers at the end, in this order:
/// what differs first is nearest to the cause.
using TreeResult = std::vector<TreeValue>;

TreeResult train_tree_alone(const TreeCase& one);
/// Trains on all ranks. Throws, naming what differs. Collective.
void require_same_when_cut(const TreeCase& one, const TreeResult& expected, const World& world);

}  // namespace tessera::testing
