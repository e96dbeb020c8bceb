#include "train/shared_net.h"

#include <tessera/recompute/recompute.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <stdexcept>

namespace tessera::testing {

SharedNet::SharedNet() {
  first = register_module("first", torch::nn::Linear(kSharedNetInputs, 10));
  norm = register_module("norm", torch::nn::BatchNorm1d(10));
  second = register_module("second", torch::nn::Linear(10, 10));
  side = register_module("side", torch::nn::Linear(10, 10));
  to(at::kDouble);
  // By hand: ranks that are threads share LibTorch's generator.
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (at::Tensor& parameter : parameters()) {
    parameter.copy_(0.4 * at::sin(at::arange(parameter.numel(), at::kDouble) * 0.9 + ++phase).view(parameter.sizes()));
  }
  register_parameter("tied", second->weight);
  frozen = register_parameter("frozen", at::full({10}, 0.5, at::kDouble), /*requires_grad=*/false);
  norm->eval();  // or the statistics would be those of a micro-batch
}

at::Tensor SharedNet::forward(const at::Tensor& x, bool uses_side) {
  const auto layers = [this](const at::Tensor& input) {
    ++num_runs;
    return at::tanh(norm(first(input))) * frozen;
  };
  at::Tensor hidden = recomputes ? recompute(layers, x) : layers(x);
  if (throws) throw std::runtime_error("planned");
  if (throws_in_backward) {
    hidden.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("planned"); });
  }
  if (uses_side) hidden = hidden + at::tanh(run_side(hidden));
  return second(hidden).matmul(second->weight);
}

at::Tensor SharedNet::run_side(const at::Tensor& x) {
  if (!defers_side) return side(x);
  const at::Tensor output = at::linear(x, side->weight.detach(), side->bias);
  output.register_hook([this, input = x.detach()](const at::Tensor& gradient) {
    deferred.emplace_back(
        [weight = side->weight, input, gradient = gradient.clone()] { weight.backward(gradient.t().matmul(input)); });
  });
  return output;
}

std::vector<Way> all_ways() {
  std::vector<Way> ways{
      {"ddp", ParallelizeOptions()},
      {"ddp that finds unused", ParallelizeOptions().ddp(DdpOptions().find_unused_parameters(true))},
  };
  const auto add = [&](const std::string& name, ShardingStrategy strategy) {
    for (const bool orig : {false, true}) {
      const auto fsdp =
          FsdpOptions().strategy(strategy).min_num_params(20).auto_wrap(wrap_by_size(20)).use_orig_params(orig);
      Way way{name + (orig ? " by parameter" : ""),
              ParallelizeOptions().data_parallelism(DataParallelism::kFsdp).fsdp(fsdp)};
      if (strategy == ShardingStrategy::kHybridShard) way.options.shard_ranks(2);
      ways.push_back(way);
    }
  };
  add("zero1", ShardingStrategy::kZero1);
  add("zero2", ShardingStrategy::kShardGradOp);
  add("zero3", ShardingStrategy::kFullShard);
  add("no_shard", ShardingStrategy::kNoShard);
  add("hybrid", ShardingStrategy::kHybridShard);
  return ways;
}

}  // namespace tessera::testing
