#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/fsdp/fully_sharded.h>
#include <tessera/shard/exact_sum.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>
#include <vector>

#include "fsdp/fsdp_state.h"

namespace tessera {

double clip_grad_norm(const ShardedModel& model, double max_norm) {
  return clip_grad_norm(std::vector<ShardedModel>{model}, max_norm);
}

double clip_grad_norm(const std::vector<ShardedModel>& blocks, double max_norm) {
  if (!(max_norm > 0)) throw ConfigError("the norm to clip to must be above 0, found " + std::to_string(max_norm));
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  ExactSum squares;
  for (const ShardedModel& block : blocks) {
    block.state()->require_uncut("clip_grad_norm()");
    block.state()->drop_cleared_gradients();
    ExactSum in_shards;
    for (const auto& unit : block.state()->units()) {
      for (const at::Tensor& parameter : unit->trained()) {
        if (!parameter.grad().defined()) continue;
        in_shards.add_squares(parameter.grad());
        gradients.push_back(parameter.grad());
      }
    }
    in_shards.all_reduce(block.state()->ranks().shards);
    squares.add(in_shards);
    // The same on every rank: counted once.
    for (const at::Tensor& parameter : block.state()->replicated().tensors) {
      if (!parameter.grad().defined()) continue;
      squares.add_squares(parameter.grad());
      gradients.push_back(parameter.grad());
    }
  }
  const double norm = std::sqrt(squares.value());
  if (norm <= max_norm || !std::isfinite(norm)) return norm;
  for (at::Tensor& gradient : gradients) gradient.mul_(max_norm / norm);
  return norm;
}

}  // namespace tessera
