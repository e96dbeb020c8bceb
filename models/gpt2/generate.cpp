#include "gpt2/generate.h"

#include <tessera/core/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "generation/token_sampler.h"

namespace tessera::models {
namespace {

/// Turns training off for as long as it lives.
class EvaluationScope {
 public:
  explicit EvaluationScope(Gpt2Impl& model) : model_(model), was_training_(model.is_training()) { model_.eval(); }
  ~EvaluationScope() { model_.train(was_training_); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  Gpt2Impl& model_;
  bool was_training_;
};

/// The logits after the last token of a text that grows.
class NextLogits {
 public:
  NextLogits(Gpt2Impl& model, std::int64_t batch, bool use_cache) : model_(model) {
    if (use_cache) cache_.emplace(model.make_cache(batch));
  }

  at::Tensor operator()(const at::Tensor& text) {
    const std::int64_t start = window_start(text.size(1), model_.config().context());
    // Positions count from the start of the window: when that moves, the cached keys and values are useless.
    if (cache_ && start != start_) cache_->clear();
    start_ = start;
    const std::int64_t num_seen = cache_ ? cache_->length() : 0;
    const at::Tensor unseen = text.narrow(1, start + num_seen, text.size(1) - start - num_seen);
    const at::Tensor features = model_.features(unseen, cache_ ? &*cache_ : nullptr);
    return model_.logits(features.select(1, -1));
  }

 private:
  Gpt2Impl& model_;
  std::optional<KvCache> cache_;
  std::int64_t start_ = 0;
};

}  // namespace

std::int64_t window_start(std::int64_t length, std::int64_t context) {
  if (length <= context) return 0;
  const std::int64_t stride = std::max<std::int64_t>((context + 1) / 2, 1);
  return (length - context + stride - 1) / stride * stride;
}

at::Tensor generate(Gpt2& model, const at::Tensor& tokens, const GenerateOptions& options) {
  if (tokens.dim() != 2 || tokens.numel() == 0) {
    throw ConfigError("expected texts of at least one token, [batch, tokens], to continue");
  }
  TokenSampler sampler(options);
  const at::NoGradGuard no_grad;
  const EvaluationScope evaluation(*model);
  NextLogits next_logits(*model, tokens.size(0), options.use_cache());
  at::Tensor text = tokens.to(at::kLong);
  at::Tensor ended = at::zeros({tokens.size(0), 1}, text.options().dtype(at::kBool));
  for (std::int64_t i = 0; i < options.max_new_tokens(); ++i) {
    at::Tensor next = sampler.draw(next_logits(text));
    if (options.stop_token() >= 0) {
      next = next.masked_fill(ended, options.stop_token());
      ended = ended.logical_or(next == options.stop_token());
    }
    text = at::cat({text, next}, 1);
    if (options.stop_token() >= 0 && ended.all().item<bool>()) break;
  }
  return text;
}

}  // namespace tessera::models
