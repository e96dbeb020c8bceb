#include "gpt2/block.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/options/normalization.h>

#include <optional>
#include <tuple>

namespace tessera::models {
namespace {

/// [new tokens, all tokens]: which tokens each new one sees. None when all tokens are new, since the kernel's own
/// causal mask counts from the first token, or when the only new token sees all.
std::optional<at::Tensor> mask_for(std::int64_t num_new, std::int64_t num_all, const at::Tensor& like) {
  if (num_new == num_all || num_new == 1) return std::nullopt;
  return at::ones({num_new, num_all}, like.options().dtype(at::kBool).requires_grad(false)).tril(num_all - num_new);
}

}  // namespace

Gpt2AttentionImpl::Gpt2AttentionImpl(const Gpt2Config& config)
    : config_(config),
      c_attn_(register_module("c_attn", TransposedLinear(config.width(), 3 * config.width()))),
      c_proj_(register_module("c_proj", TransposedLinear(config.width(), config.width()))) {}

at::Tensor Gpt2AttentionImpl::forward(const at::Tensor& x, KvCache* cache, std::int64_t layer) {
  const auto parts = c_attn_(x).split(config_.width(), 2);
  const auto heads = [&](const at::Tensor& part) {
    return part.view({x.size(0), x.size(1), config_.num_heads(), config_.head_width()}).transpose(1, 2);
  };
  at::Tensor keys = heads(parts[1]);
  at::Tensor values = heads(parts[2]);
  if (cache != nullptr) std::tie(keys, values) = cache->append(layer, keys, values);
  const std::int64_t num_new = x.size(1);
  const std::int64_t num_all = keys.size(2);
  const double dropout = is_training() ? config_.attention_dropout() : 0.0;
  const at::Tensor mixed =
      at::scaled_dot_product_attention(heads(parts[0]), keys, values, mask_for(num_new, num_all, x), dropout,
                                       /*is_causal=*/num_new == num_all);
  const at::Tensor joined = mixed.transpose(1, 2).reshape(x.sizes());
  return at::dropout(c_proj_(joined), config_.residual_dropout(), is_training());
}

Gpt2MlpImpl::Gpt2MlpImpl(const Gpt2Config& config)
    : dropout_(config.residual_dropout()),
      c_fc_(register_module("c_fc", TransposedLinear(config.width(), config.inner_width()))),
      c_proj_(register_module("c_proj", TransposedLinear(config.inner_width(), config.width()))) {}

at::Tensor Gpt2MlpImpl::forward(const at::Tensor& x) {
  return at::dropout(c_proj_(at::gelu(c_fc_(x), "tanh")), dropout_, is_training());
}

torch::nn::LayerNorm make_gpt2_norm(const Gpt2Config& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width()}).eps(config.layer_norm_epsilon()));
}

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Config& config)
    : ln_1_(register_module("ln_1", make_gpt2_norm(config))),
      attn_(register_module("attn", Gpt2Attention(config))),
      ln_2_(register_module("ln_2", make_gpt2_norm(config))),
      mlp_(register_module("mlp", Gpt2Mlp(config))) {}

at::Tensor Gpt2BlockImpl::forward(const at::Tensor& x, KvCache* cache, std::int64_t layer) {
  const at::Tensor attended = x + attn_(ln_1_(x), cache, layer);
  return attended + mlp_(ln_2_(attended));
}

}  // namespace tessera::models
