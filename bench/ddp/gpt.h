#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace bench {

constexpr std::int64_t kLayers = 6;
constexpr std::int64_t kWidth = 512;
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kVocabulary = 8192;
constexpr std::int64_t kSequence = 256;
constexpr std::int64_t kBatch = 4;

class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl();
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear query_{nullptr};
  torch::nn::Linear key_{nullptr};
  torch::nn::Linear value_{nullptr};
  torch::nn::Linear out_{nullptr};
};
TORCH_MODULE(Attention);

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl();
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::LayerNorm norm1_{nullptr};
  Attention attention_{nullptr};
  torch::nn::LayerNorm norm2_{nullptr};
  torch::nn::Linear up_{nullptr};
  torch::nn::Linear down_{nullptr};
};
TORCH_MODULE(Block);

/// The model of bench/peers/ddp_rank.py, in plain LibTorch: the same arithmetic in the same order.
class GptImpl : public torch::nn::Module {
 public:
  GptImpl();
  at::Tensor forward(const at::Tensor& tokens);

 private:
  torch::nn::Embedding tokens_{nullptr};
  torch::nn::Embedding positions_{nullptr};
  torch::nn::ModuleList blocks_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Gpt);

/// The same weights as the peer's, bit for bit.
Gpt make_gpt();

struct Batch {
  at::Tensor tokens;   ///< [kBatch, kSequence]
  at::Tensor targets;  ///< [kBatch * kSequence]
};
/// The same as the peer's of this rank.
Batch make_batch(int rank);

at::Tensor loss_of(Gpt& model, const Batch& batch);

}  // namespace bench
