#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_sharded.h>
#include <tessera/optim/clip_grad_norm.h>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "support/error_message.h"

namespace tessera {
namespace {

FsdpOptions all_sharded() { return FsdpOptions().min_num_params(0); }

void fill(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(at::sin(at::arange(parameter.numel()) * 0.7 + ++phase).view(parameter.sizes()));
  }
}

at::Tensor data() { return at::cos(at::arange(20) * 0.3).view({4, 5}); }

bool operators_are_heard() { return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value(); }

TEST(FullySharded, StandsInASequence) {
  run_threads(2, [](const World& world) {
    torch::nn::Linear first(5, 7);
    torch::nn::Linear second(7, 3);
    fill(*first);
    fill(*second);
    torch::nn::Sequential plain(first, torch::nn::Tanh(), second);
    const at::Tensor expected = plain->forward(data());
    expected.square().sum().backward();
    double squares = 0;
    for (const at::Tensor& parameter : plain->parameters()) squares += parameter.grad().square().sum().item<double>();
    plain->zero_grad();

    torch::nn::Sequential sequence(FullySharded<torch::nn::LinearImpl>(first, world, all_sharded()), torch::nn::Tanh(),
                                   FullySharded<torch::nn::LinearImpl>(second, world, all_sharded()));
    const auto blocks = sharded_blocks_of(*sequence);
    ASSERT_EQ(blocks.size(), 2U);
    const at::Tensor output = sequence->forward(data());
    EXPECT_TRUE(at::equal(output, expected));
    output.square().sum().backward();
    for (const ShardedModel& block : blocks) EXPECT_EQ(block.statistics().gathered_bytes, 0U);
    EXPECT_NEAR(clip_grad_norm(blocks, 1e9), std::sqrt(squares), 1e-4);
  });
}

TEST(FullySharded, HearsNoOperatorsWhileItComputes) {
  run_threads(1, [](const World& world) {
    ASSERT_FALSE(operators_are_heard());
    FullySharded<torch::nn::LinearImpl> block(torch::nn::Linear(5, 7), world, all_sharded());
    const at::Tensor loss = block.forward(data()).sum();
    EXPECT_FALSE(operators_are_heard());
    loss.backward();
    EXPECT_TRUE(operators_are_heard()) << "those of an optimizer";
    for (const at::Tensor& tensor : block.handle().parameters()) tensor.mutable_grad() = at::Tensor();
    std::ignore = block.forward(data());
    EXPECT_FALSE(operators_are_heard());
    const auto other = fully_shard(torch::nn::Linear(5, 7), world, all_sharded());
    EXPECT_TRUE(operators_are_heard()) << "the test says nothing";
  });
}

/// Several outputs, not all of them tensors of the graph, and parameters that are frozen.
struct Forked : torch::nn::Module {
  Forked() : left(register_module("left", torch::nn::Linear(5, 4))) {
    right = register_module("right", torch::nn::Linear(5, 4));
    right->weight.set_requires_grad(false);
  }
  std::tuple<at::Tensor, std::vector<at::Tensor>, std::optional<at::Tensor>> forward(const at::Tensor& x) {
    return {left(x), {right(x), x.detach()}, std::nullopt};
  }
  torch::nn::Linear left;
  torch::nn::Linear right{nullptr};
};

TEST(FullySharded, GathersForAnyOfItsOutputs) {
  const auto plain = std::make_shared<Forked>();
  fill(*plain);
  at::Tensor expected_input = data().requires_grad_(true);
  std::get<1>(plain->forward(expected_input))[0].square().sum().backward();
  for (const int num_ranks : {1, 2, 3}) {
    run_threads(num_ranks, [&](const World& world) {
      const auto forked = std::make_shared<Forked>();
      fill(*forked);
      FullySharded<Forked> block(forked, world, all_sharded());
      at::Tensor input = data().requires_grad_(true);
      std::get<1>(block.forward(input))[0].square().sum().backward();
      EXPECT_TRUE(at::equal(input.grad(), expected_input.grad()));
      EXPECT_EQ(block.handle().statistics().gathered_bytes, 0U);
    });
  }
}

TEST(FullySharded, RefusesTwoAxes) {
  run_threads(1, [](const World& world) {
    const auto options = all_sharded().strategy(ShardingStrategy::kHybridShard);
    EXPECT_THROW(FullySharded<torch::nn::LinearImpl>(torch::nn::Linear(2, 2), world, options), ConfigError);
  });
}

TEST(FullySharded, RefusesWritesThatItDidNotHearOf) {
  run_threads(2, [](const World& world) {
    const torch::nn::Linear layer(5, 7);
    FullySharded<torch::nn::LinearImpl> block(layer, world, all_sharded());
    {
      const auto whole = block.handle().gather();
      const at::NoGradGuard no_grad;
      layer->weight.mul_(1);
    }
    testing::expect_parts(testing::message_of<ConfigError>([&] { block.forward(data()); }),
                          {"the parameter weight was written to after fully_shard()", "write_back(true)", "rank"});
  });
}

}  // namespace
}  // namespace tessera
