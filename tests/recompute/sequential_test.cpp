#include <tessera/core/error.h>
#include <tessera/recompute/recompute_sequential.h>

#include <torch/nn/modules/container/sequential.h>

#include "recompute/blocks.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::expect_same_gradients;
using testing::waves;

TEST(CheckpointSequential, CutsIntoEqualSegmentsTheLongerOnesFirst) {
  EXPECT_EQ(recomputation::segment_ends(8, 4), (std::vector<std::size_t>{2, 4, 6, 8}));
  EXPECT_EQ(recomputation::segment_ends(7, 3), (std::vector<std::size_t>{3, 5, 7}));
  EXPECT_EQ(recomputation::segment_ends(1, 1), (std::vector<std::size_t>{1}));
}

TEST(CheckpointSequential, RefusesMoreSegmentsThanModules) {
  testing::expect_parts(testing::message_of<ConfigError>([] { recomputation::segment_ends(3, 4); }),
                        {"recompute_sequential: expected 1 to 3 segments", "found 4"});
  EXPECT_THROW(recomputation::segment_ends(3, 0), ConfigError);
}

TEST(CheckpointSequential, GivesTheGradientsOfASequential) {
  torch::nn::Sequential model(testing::Block(16, 0.1), torch::nn::Linear(16, 16), torch::nn::Dropout(0.2),
                              testing::Block(16, 0.1), torch::nn::Tanh());
  model->to(at::kDouble);
  for (const std::int64_t num_segments : {1, 2, 3, 5}) {
    expect_same_gradients(model->parameters(), [&](bool recomputed) {
      const at::Tensor input = waves({2, 3, 16});
      return (recomputed ? recompute_sequential(model, num_segments, input) : model->forward(input)).square().mean();
    });
  }
}

TEST(CheckpointSequential, TakesAnyListOfCalls) {
  std::vector<torch::nn::Linear> layers;
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 4; ++i) {
    layers.emplace_back(torch::nn::LinearOptions(4, 4));
    layers.back()->to(at::kDouble);
    weights.push_back(layers.back()->weight);
  }
  expect_same_gradients(weights, [&](bool recomputed) {
    at::Tensor x = waves({2, 4});
    if (recomputed) return recompute_sequential(layers, 2, x).exp().sum();
    for (auto& layer : layers) x = layer(x);
    return x.exp().sum();
  });
}

TEST(CheckpointSequential, KeepsTheLastSegment) {
  const auto calls = std::make_shared<std::vector<int>>(4);
  std::vector<std::function<at::Tensor(const at::Tensor&)>> modules;
  for (std::size_t i = 0; i < 4; ++i) {
    modules.emplace_back([calls, i](const at::Tensor& x) {
      ++calls->at(i);
      return x.exp().sin();
    });
  }
  recompute_sequential(modules, 2, waves({3}).requires_grad_(true)).sum().backward();
  EXPECT_EQ(*calls, (std::vector<int>{2, 2, 1, 1}));
}

}  // namespace
}  // namespace tessera
