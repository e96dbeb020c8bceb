#include "gpt/gpt.h"

#include <ATen/ATen.h>
#include <torch/utils.h>

namespace bench {
namespace {

/// Not `linear(x)`: LibTorch's own adds the bias in a step of its own, Python's in the matrix product.
at::Tensor project(const torch::nn::Linear& linear, const at::Tensor& x) {
  return at::linear(x, linear->weight, linear->bias);
}

}  // namespace

AttentionImpl::AttentionImpl(const GptShape& shape)
    : heads_(shape.heads),
      query_(register_module("query", torch::nn::Linear(shape.width, shape.width))),
      key_(register_module("key", torch::nn::Linear(shape.width, shape.width))),
      value_(register_module("value", torch::nn::Linear(shape.width, shape.width))),
      out_(register_module("out", torch::nn::Linear(shape.width, shape.width))) {}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const auto heads = [&](const torch::nn::Linear& linear) {
    return project(linear, x).view({x.size(0), x.size(1), heads_, x.size(2) / heads_}).transpose(1, 2);
  };
  const at::Tensor mixed = at::scaled_dot_product_attention(heads(query_), heads(key_), heads(value_),
                                                            /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return project(out_, mixed.transpose(1, 2).reshape(x.sizes()));
}

BlockImpl::BlockImpl(const GptShape& shape)
    : norm1_(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
      attention_(register_module("attention", Attention(shape))),
      norm2_(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
      up_(register_module("up", torch::nn::Linear(shape.width, 4 * shape.width))),
      down_(register_module("down", torch::nn::Linear(4 * shape.width, shape.width))) {}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + attention_(norm1_(x));
  return attended + project(down_, at::gelu(project(up_, norm2_(attended)), "tanh"));
}

GptImpl::GptImpl(const GptShape& shape)
    : tokens_(register_module("tokens", torch::nn::Embedding(shape.vocabulary, shape.width))),
      positions_(register_module("positions", torch::nn::Embedding(shape.sequence, shape.width))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})))),
      head_(register_module("head",
                            torch::nn::Linear(torch::nn::LinearOptions(shape.width, shape.vocabulary).bias(false)))) {
  for (std::int64_t i = 0; i < shape.layers; ++i) blocks_->push_back(Block(shape));
}

at::Tensor GptImpl::forward(const at::Tensor& tokens) {
  at::Tensor x = tokens_(tokens) + positions_(at::arange(tokens.size(1), tokens.options()));
  std::int64_t number = 0;
  for (const auto& block : *blocks_) {
    if (watcher_) watcher_(number, x);
    x = block->as<BlockImpl>()->forward(x);
    ++number;
  }
  if (watcher_) watcher_(number, x);
  return project(head_, norm_(x));
}

Gpt make_gpt(const GptShape& shape) {
  Gpt model(shape);
  torch::manual_seed(0);
  const torch::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    at::Tensor parameter = item.value();
    if (parameter.dim() > 1) {
      parameter.normal_(0, 0.02);
    } else if (item.key().ends_with("bias")) {
      parameter.zero_();
    }
  }
  return model;
}

Batch make_batch(int rank, const GptShape& shape) {
  torch::manual_seed(1 + static_cast<std::uint64_t>(rank));
  const at::Tensor text = at::randint(shape.vocabulary, {shape.batch, shape.sequence + 1}, at::kLong);
  return {text.narrow(1, 0, shape.sequence).contiguous(), text.narrow(1, 1, shape.sequence).contiguous().view(-1)};
}

at::Tensor loss_of(Gpt& model, const Batch& batch) {
  const at::Tensor logits = model(batch.tokens);
  return at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), batch.targets);
}

}  // namespace bench
