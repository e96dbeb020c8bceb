#pragma once

#include <torch/nn/modules.h>

namespace tessera::testing {

/// One layer of the "gpt" of make_parity_model.
struct GptBlock : torch::nn::Module {
  GptBlock()
      : first_norm(register_module("first_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        attention(register_module("attention", torch::nn::MultiheadAttention(kWidth, 2))),
        second_norm(register_module("second_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 2 * kWidth))),
        down(register_module("down", torch::nn::Linear(2 * kWidth, kWidth))) {}

  torch::Tensor forward(torch::Tensor x) {
    const auto length = x.size(0);
    const auto mask = torch::full({length, length}, -1e9, x.options().requires_grad(false)).triu(1);
    const auto normed = first_norm(x);
    x = x + std::get<0>(attention->forward(normed, normed, normed, {}, false, mask));
    return x + down(torch::gelu(up(second_norm(x))));
  }

  static constexpr int kWidth = 8;
  torch::nn::LayerNorm first_norm;
  torch::nn::MultiheadAttention attention;
  torch::nn::LayerNorm second_norm;
  torch::nn::Linear up;
  torch::nn::Linear down;
};

}  // namespace tessera::testing
