#include "gpt.h"

#include <ATen/ATen.h>
#include <torch/utils.h>

namespace bench {
namespace {

/// Not `linear(x)`: LibTorch's own adds the bias in a step of its own, Python's in the matrix product.
at::Tensor project(const torch::nn::Linear& linear, const at::Tensor& x) {
  return at::linear(x, linear->weight, linear->bias);
}

}  // namespace

AttentionImpl::AttentionImpl()
    : query_(register_module("query", torch::nn::Linear(kWidth, kWidth))),
      key_(register_module("key", torch::nn::Linear(kWidth, kWidth))),
      value_(register_module("value", torch::nn::Linear(kWidth, kWidth))),
      out_(register_module("out", torch::nn::Linear(kWidth, kWidth))) {}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const auto heads = [&x](const torch::nn::Linear& linear) {
    return project(linear, x).view({x.size(0), x.size(1), kHeads, kWidth / kHeads}).transpose(1, 2);
  };
  const at::Tensor mixed = at::scaled_dot_product_attention(heads(query_), heads(key_), heads(value_),
                                                            /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return project(out_, mixed.transpose(1, 2).reshape(x.sizes()));
}

BlockImpl::BlockImpl()
    : norm1_(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
      attention_(register_module("attention", Attention())),
      norm2_(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
      up_(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
      down_(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))) {}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + attention_(norm1_(x));
  return attended + project(down_, at::gelu(project(up_, norm2_(attended)), "tanh"));
}

GptImpl::GptImpl()
    : tokens_(register_module("tokens", torch::nn::Embedding(kVocabulary, kWidth))),
      positions_(register_module("positions", torch::nn::Embedding(kSequence, kWidth))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
      head_(register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)))) {
  for (std::int64_t i = 0; i < kLayers; ++i) blocks_->push_back(Block());
}

at::Tensor GptImpl::forward(const at::Tensor& tokens) {
  at::Tensor x = tokens_(tokens) + positions_(at::arange(tokens.size(1)));
  for (const auto& block : *blocks_) x = block->as<BlockImpl>()->forward(x);
  return project(head_, norm_(x));
}

Gpt make_gpt() {
  Gpt model;
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

Batch make_batch(int rank) {
  torch::manual_seed(1 + static_cast<std::uint64_t>(rank));
  const at::Tensor text = at::randint(kVocabulary, {kBatch, kSequence + 1}, at::kLong);
  return {text.narrow(1, 0, kSequence).contiguous(), text.narrow(1, 1, kSequence).contiguous().view(-1)};
}

at::Tensor loss_of(Gpt& model, const Batch& batch) {
  return at::cross_entropy_loss(model(batch.tokens).view({-1, kVocabulary}), batch.targets);
}

}  // namespace bench
