#pragma once

#include <torch/nn/modules.h>

namespace tessera::testing {

/// A model that draws random numbers unless `dropped` is 0.
struct Noisy : torch::nn::Module {
  explicit Noisy(double dropped) : p(dropped) { layer = register_module("layer", torch::nn::Linear(2, 2)); }
  at::Tensor forward(const at::Tensor& input) { return at::dropout(layer(input), p, /*train=*/true); }
  double p;
  torch::nn::Linear layer{nullptr};
};

}  // namespace tessera::testing
