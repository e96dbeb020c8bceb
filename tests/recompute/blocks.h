#pragma once

#include <tessera/recompute/recompute.h>

#include <torch/nn/modules.h>
#include <torch/utils.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tessera::testing {

/// A transformer's layer, with dropout in two places.
struct Block : torch::nn::Module {
  explicit Block(std::int64_t width = 16, double dropped = 0.1, std::int64_t num_heads = 2)
      : heads(num_heads), p(dropped) {
    namespace nn = torch::nn;
    first_norm = register_module("first_norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    mix = register_module("mix", nn::Linear(width, 3 * width));
    out = register_module("out", nn::Linear(width, width));
    second_norm = register_module("second_norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, 4 * width));
    down = register_module("down", nn::Linear(4 * width, width));
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto parts = mix(first_norm(x)).view({x.size(0), x.size(1), 3, heads, x.size(2) / heads}).unbind(2);
    const auto scores = at::matmul(parts[0].transpose(1, 2), parts[1].permute({0, 2, 3, 1}));
    const auto weights = at::dropout(at::softmax(scores, -1), p, is_training());
    const auto mixed = at::matmul(weights, parts[2].transpose(1, 2)).transpose(1, 2).reshape(x.sizes());
    const auto attended = x + out(mixed);
    return attended + at::dropout(down(at::gelu(up(second_norm(attended)))), p, is_training());
  }

  std::int64_t heads;
  double p;
  torch::nn::LayerNorm first_norm{nullptr};
  torch::nn::Linear mix{nullptr};
  torch::nn::Linear out{nullptr};
  torch::nn::LayerNorm second_norm{nullptr};
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
};

/// sin(k + phase) for k = 0, 1, ..., in double.
inline at::Tensor waves(at::IntArrayRef shape, double phase = 0) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) + phase).view(shape);
}

inline at::Tensor leaf(at::IntArrayRef shape, double phase = 0) { return waves(shape, phase).requires_grad_(true); }

inline std::vector<std::shared_ptr<Block>> make_blocks(std::size_t count, double dropped = 0.1) {
  std::vector<std::shared_ptr<Block>> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.push_back(std::make_shared<Block>(16, dropped));
    blocks.back()->to(at::kDouble);
    const torch::NoGradGuard no_grad;
    double phase = static_cast<double>(i);
    for (at::Tensor& parameter : blocks.back()->parameters()) parameter.copy_(waves(parameter.sizes(), ++phase) * 0.3);
  }
  return blocks;
}

inline std::vector<at::Tensor> parameters_of(const std::vector<std::shared_ptr<Block>>& blocks) {
  std::vector<at::Tensor> parameters;
  for (const auto& block : blocks) {
    for (const at::Tensor& parameter : block->parameters()) parameters.push_back(parameter);
  }
  return parameters;
}

/// A plain call, or a checkpoint: for tests that compare the two.
template <typename Function, typename... Inputs>
auto call(bool recomputed, Function function, Inputs... inputs) {  // NOLINT(performance-unnecessary-value-param)
  return recomputed ? recompute(function, inputs...) : function(inputs...);
}

/// `loss(recomputed)` must have the same value and give `leaves` the same gradients, undefined ones included, with
/// checkpoints and without.
template <typename Loss>
void expect_same_gradients(const std::vector<at::Tensor>& leaves, const Loss& loss, double tolerance = 1e-12) {
  const auto run = [&](bool recomputed) {
    torch::manual_seed(7);
    for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
    const at::Tensor value = loss(recomputed);
    value.backward();
    std::vector<at::Tensor> results{value.detach()};
    for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad());
    // How much of the random numbers was used is part of the result.
    results.push_back(at::rand({3}, at::kDouble));
    return results;
  };
  const auto expected = run(false);
  const auto found = run(true);
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << "result " << i;
    if (!expected[i].defined()) continue;
    ASSERT_EQ(found[i].sizes(), expected[i].sizes()) << "result " << i;
    largest = std::max(largest, (found[i] - expected[i]).abs().max().template item<double>());
  }
  EXPECT_LE(largest, tolerance);
}

}  // namespace tessera::testing
