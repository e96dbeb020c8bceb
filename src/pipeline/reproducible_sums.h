#pragma once

#include <tessera/shard/gradient_tree.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "pipeline/chunk_run.h"
#include "pipeline/stage_model.h"

namespace tessera::pp {

/// Note [Micro-batches along a tree]
/// In reproducible mode the gradient of a parameter is the sum over micro-batches along the binary tree that data
/// parallelism uses too (GradientTree). So it must be known for each micro-batch by itself: it is taken from the
/// parameter after each backward of a stage. Of a parameter that several stages use, the parts of a micro-batch are
/// added from the last stage to the first, as a backward pass in one process does.
///
/// The gradients of a rank's parameters in one step. Thread-safety: none.
class ReproducibleSums {
 public:
  /// `in_parts`: the places of parameters that several stages use.
  ReproducibleSums(StageModel& model, int num_micro_batches, std::set<std::size_t> in_parts);

  /// Takes what the backward of a micro-batch through a stage of this rank has left: on parameters of this rank, and
  /// what `taken(place)` gives for copies of others.
  void take(int micro_batch, int stage, const std::function<at::Tensor(std::size_t place)>& taken);
  /// What take() has found on a copy; undefined: nothing.
  at::Tensor part(std::size_t place, int micro_batch, int stage) const;
  /// What another rank has found so.
  void add_part(std::size_t place, int micro_batch, int stage, at::Tensor gradient);
  /// Gives the parameters of this rank their sums; zeros where there is none.
  void finish();

 private:
  using Parts = std::map<int, at::Tensor, std::greater<>>;  // by stage, the last one first

  StageModel& model_;
  int num_micro_batches_;
  std::set<std::size_t> in_parts_;
  std::map<std::size_t, GradientTree> trees_;
  std::map<std::size_t, std::set<int>> in_trees_;  // by place, the micro-batches that the tree has
  std::map<std::size_t, std::map<int, Parts>> parts_;
};

/// Throws ConfigError unless gradients were cleared, all micro-batches have the same weight and draw no random numbers,
/// and their number is a power of two.
void require_reproducible(const StageModel& model, const std::vector<double>& weights,
                          const std::vector<const ForwardPlan*>& plans);

}  // namespace tessera::pp
