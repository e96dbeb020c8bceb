#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <vector>

#include "fsdp/fsdp_state.h"

namespace tessera {
namespace {

double sum_of_squares(const at::Tensor& gradient) { return gradient.to(at::kDouble).square().sum().item<double>(); }

}  // namespace

double clip_grad_norm(const ShardedModel& model, double max_norm) {
  if (!(max_norm > 0)) throw ConfigError("the norm to clip to must be above 0, found " + std::to_string(max_norm));
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  double in_shards = 0;
  for (const auto& unit : model.state()->units()) {
    for (const at::Tensor& parameter : unit->trained()) {
      if (!parameter.grad().defined()) continue;
      in_shards += sum_of_squares(parameter.grad());
      gradients.push_back(parameter.grad());
    }
  }
  const at::Tensor sum = at::full({1}, in_shards, at::kDouble);
  model.state()->ranks().shards.all_reduce(sum);
  double squares = sum.item<double>();
  // The same on every rank: counted once.
  for (const at::Tensor& parameter : model.state()->replicated().tensors) {
    if (!parameter.grad().defined()) continue;
    squares += sum_of_squares(parameter.grad());
    gradients.push_back(parameter.grad());
  }
  const double norm = std::sqrt(squares);
  if (norm <= max_norm || !std::isfinite(norm)) return norm;
  for (at::Tensor& gradient : gradients) gradient.mul_(max_norm / norm);
  return norm;
}

}  // namespace tessera
