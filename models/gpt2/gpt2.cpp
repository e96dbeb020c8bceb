#include "gpt2/gpt2.h"

#include <tessera/core/error.h>
#include <tessera/recompute/recompute.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/options/embedding.h>

#include <cmath>
#include <memory>
#include <string>

namespace tessera::models {
namespace {

/// When it is given a weight, LibTorch does not draw one.
torch::nn::Embedding make_embedding(std::int64_t num_rows, std::int64_t width) {
  return torch::nn::Embedding(
      torch::nn::EmbeddingOptions(num_rows, width)._weight(at::zeros({num_rows, width}).requires_grad_()));
}

Gpt2Config checked(Gpt2Config config) {
  config.check();
  return config;
}

}  // namespace

Gpt2Impl::Gpt2Impl(const Gpt2Config& config)
    : config_(checked(config)),
      wte_(register_module("wte", make_embedding(config.vocab_size(), config.width()))),
      wpe_(register_module("wpe", make_embedding(config.context(), config.width()))),
      h_(register_module("h", torch::nn::ModuleList())),
      ln_f_(register_module("ln_f", make_gpt2_norm(config))) {
  for (std::int64_t i = 0; i < config.num_layers(); ++i) h_->push_back(Gpt2Block(config));
  reset_parameters();
}

void Gpt2Impl::reset_parameters(const std::optional<at::Generator>& generator) {
  const at::NoGradGuard no_grad;
  // What a block adds to its input has a smaller spread, so that the sum over all layers does not grow with their
  // number.
  const double added_std = config_.init_std() / std::sqrt(2.0 * static_cast<double>(config_.num_layers()));
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    at::Tensor& parameter = item.value();
    if (name.ends_with("c_proj.weight")) {
      parameter.normal_(0, added_std, generator);
    } else if (name.find("ln_") != std::string::npos && name.ends_with("weight")) {
      parameter.fill_(1);
    } else if (name.ends_with("bias")) {
      parameter.zero_();
    } else {
      parameter.normal_(0, config_.init_std(), generator);
    }
  }
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens) { return logits(features(tokens)); }

at::Tensor Gpt2Impl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  if (targets.sizes() != tokens.sizes()) throw ConfigError("expected a target for each token, in the same shape");
  return at::cross_entropy_loss(forward(tokens).view({-1, config_.vocab_size()}), targets.reshape({-1}));
}

at::Tensor Gpt2Impl::features(const at::Tensor& tokens, KvCache* cache) {
  const std::int64_t num_before = cache == nullptr ? 0 : cache->length();
  check_tokens(tokens, num_before);
  const std::int64_t num_tokens = tokens.size(1);
  const at::Tensor positions =
      at::arange(num_before, num_before + num_tokens, at::TensorOptions(at::kLong).device(tokens.device()));
  at::Tensor x = at::dropout(wte_(tokens) + wpe_(positions), config_.embedding_dropout(), is_training());
  std::int64_t layer = 0;
  for (const auto& module : *h_) {
    const auto block = std::dynamic_pointer_cast<Gpt2BlockImpl>(module);
    const auto run = [block, cache, layer](const at::Tensor& input) { return block->forward(input, cache, layer); };
    x = recomputes_ && cache == nullptr ? recompute(run, x) : run(x);
    ++layer;
  }
  if (cache != nullptr) cache->advance(num_tokens);
  return ln_f_(x);
}

at::Tensor Gpt2Impl::logits(const at::Tensor& features) { return at::linear(features, wte_->weight); }

KvCache Gpt2Impl::make_cache(std::int64_t batch) const {
  return {config_.num_layers(), batch, config_.num_heads(), config_.context(), config_.head_width(), wte_->weight};
}

void Gpt2Impl::check_tokens(const at::Tensor& tokens, std::int64_t num_before) const {
  if (tokens.dim() != 2) {
    throw ConfigError("expected tokens of two dimensions, [batch, tokens]; found " + std::to_string(tokens.dim()));
  }
  if (num_before + tokens.size(1) > config_.context()) {
    throw ConfigError("this GPT-2 sees at most " + std::to_string(config_.context()) + " tokens, found " +
                      std::to_string(num_before + tokens.size(1)) + "; cut the text, or raise context");
  }
}

}  // namespace tessera::models
