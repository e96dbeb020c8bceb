#pragma once

#include <torch/nn/modules/normalization.h>

#include "gpt2/config.h"
#include "layers/kv_cache.h"
#include "layers/transposed_linear.h"

namespace tessera::models {

/// Attention of each token to those before it and to itself.
class Gpt2AttentionImpl : public torch::nn::Module {
 public:
  explicit Gpt2AttentionImpl(const Gpt2Config& config);
  /// [batch, tokens, width] to the same. With a cache the tokens follow those that it holds.
  at::Tensor forward(const at::Tensor& x, KvCache* cache = nullptr, std::int64_t layer = 0);

 private:
  Gpt2Config config_;
  TransposedLinear c_attn_{nullptr};
  TransposedLinear c_proj_{nullptr};
};
TORCH_MODULE(Gpt2Attention);

class Gpt2MlpImpl : public torch::nn::Module {
 public:
  explicit Gpt2MlpImpl(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  double dropout_;
  TransposedLinear c_fc_{nullptr};
  TransposedLinear c_proj_{nullptr};
};
TORCH_MODULE(Gpt2Mlp);

/// One layer. The names of its modules are Hugging Face's.
class Gpt2BlockImpl : public torch::nn::Module {
 public:
  explicit Gpt2BlockImpl(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& x, KvCache* cache = nullptr, std::int64_t layer = 0);

 private:
  torch::nn::LayerNorm ln_1_{nullptr};
  Gpt2Attention attn_{nullptr};
  torch::nn::LayerNorm ln_2_{nullptr};
  Gpt2Mlp mlp_{nullptr};
};
TORCH_MODULE(Gpt2Block);

/// A LayerNorm with the settings of the model.
torch::nn::LayerNorm make_gpt2_norm(const Gpt2Config& config);

}  // namespace tessera::models
