#pragma once

#include <torch/nn/modules.h>
#include <torch/types.h>

#include <memory>

namespace tessera::testing {

/// Three layers, of which the middle one can be left out.
struct Chain : torch::nn::Module {
  Chain() {
    first = register_module("first", torch::nn::Linear(4, 5));
    middle = register_module("middle", torch::nn::Linear(5, 5));
    last = register_module("last", torch::nn::Linear(5, 2));
    seen = register_buffer("seen", torch::zeros({3}));
    fill(0.1);
  }
  void fill(double value) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel()) + value).view(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& input, bool skip_middle = false) {
    auto x = torch::tanh(first(input));
    if (!skip_middle) x = torch::tanh(middle(x));
    return last(x);
  }

  torch::nn::Linear first = nullptr;
  torch::nn::Linear middle = nullptr;
  torch::nn::Linear last = nullptr;
  torch::Tensor seen;
};

inline torch::Tensor chain_input(int rank) { return torch::cos(torch::arange(3 * 4) * 0.3 + rank).view({3, 4}); }
inline void backward(Chain& model, int rank, bool skip_middle = false) {
  model.forward(chain_input(rank), skip_middle).sum().backward();
}

}  // namespace tessera::testing
