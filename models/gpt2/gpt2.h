#pragma once

#include <tessera/recompute/recomputable.h>

#include <ATen/core/Generator.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include <optional>

#include "gpt2/block.h"
#include "gpt2/config.h"

namespace tessera::models {

/// GPT-2, in plain LibTorch. The names of its parameters are Hugging Face's (`h.0.attn.c_attn.weight`); the output
/// layer is the token embedding. Fresh weights are drawn as GPT-2's were, from LibTorch's generator, so
/// torch::manual_seed() decides them.
class Gpt2Impl : public torch::nn::Module, public Recomputable {
 public:
  /// Throws ConfigError for a configuration that makes no sense.
  explicit Gpt2Impl(const Gpt2Config& config);

  /// [batch, tokens] of integers to [batch, tokens, vocabulary] of logits.
  /// Throws ConfigError for more tokens than the context has.
  at::Tensor forward(const at::Tensor& tokens);
  /// The mean over all tokens of -log p(target), in nats. A target of -100 does not count.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  /// forward() in two halves: the normalised output of the last block, [batch, tokens, width], and the logits of it.
  /// With a cache the tokens follow those that it holds, and are added to it.
  at::Tensor features(const at::Tensor& tokens, KvCache* cache = nullptr);
  at::Tensor logits(const at::Tensor& features);

  /// Draws all weights anew; without a generator from LibTorch's own.
  void reset_parameters(const std::optional<at::Generator>& generator = std::nullopt);

  /// Blocks run again in backward, instead of keeping what they computed. Not with a cache.
  void set_recompute(bool recompute) override { recomputes_ = recompute; }

  const Gpt2Config& config() const { return config_; }
  KvCache make_cache(std::int64_t batch) const;

 private:
  void check_tokens(const at::Tensor& tokens, std::int64_t num_before) const;

  Gpt2Config config_;
  bool recomputes_ = false;
  torch::nn::Embedding wte_{nullptr};
  torch::nn::Embedding wpe_{nullptr};
  torch::nn::ModuleList h_{nullptr};
  torch::nn::LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(Gpt2);

}  // namespace tessera::models
