#pragma once

#include <tessera/fsdp/fully_shard.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/random_models/node.h"

namespace tessera::testing {

constexpr double kLearningRate = 0.1;  ///< of plain SGD

/// How one step goes, on every rank.
struct StepPlan {
  int num_micro_batches = 1;
  bool one_backward = false;    ///< of all micro-batches, after the last forward
  bool no_sync = false;         ///< otherwise: for all of them but the last
  bool penalty = false;         ///< the loss has a gradient in it
  bool evaluate_first = false;  ///< an evaluation before the forward, before the backward, after it
  bool evaluate_between = false;
  bool evaluate_after = false;
  double max_norm = 0;  ///< to clip to; 0: no clipping
};

/// A random model, a random way to shard it, and a random training.
struct RandomCase {
  std::uint64_t seed = 0;
  int num_ranks = 1;
  int num_replicas = 1;  ///< with kHybridShard
  FsdpOptions options;
  std::vector<StepPlan> steps;

  std::string text() const;
  /// A line for each step, each after a line break.
  std::string steps_text() const;
};

RandomCase make_random_case(std::uint64_t seed);

/// The data of a micro-batch.
Batch make_batch(int step, int rank, int micro);
at::Tensor loss_of(Node& model, const StepPlan& plan, Batch& batch);

/// What a rank does in a step, apart from the optimizer.
struct StepWays {
  bool may_recompute = true;
  /// Runs a backward pass whose gradients are not averaged.
  std::function<void(const std::function<void()>&)> without_sync = [](const auto& backward) { backward(); };
  double loss_weight = 1;
  int* num_then = nullptr;
  int* num_else = nullptr;
  std::vector<at::Tensor>* losses = nullptr;  ///< if given: gets those of the micro-batches
};

/// Runs forward and backward passes of one rank. Returns what its evaluations gave.
std::vector<at::Tensor> play_step(const RandomCase& one, int step, int rank, Node& model, const StepWays& ways);

}  // namespace tessera::testing
