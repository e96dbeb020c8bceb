#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace bench {

/// The defaults are the shape of which speeds are measured: 27 million parameters.
struct GptShape {
  std::int64_t layers = 6;
  std::int64_t width = 512;
  std::int64_t heads = 8;
  std::int64_t vocabulary = 8192;
  std::int64_t sequence = 256;
  std::int64_t batch = 4;
};

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GptShape& shape);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::int64_t heads_;
  torch::nn::Linear query_{nullptr};
  torch::nn::Linear key_{nullptr};
  torch::nn::Linear value_{nullptr};
  torch::nn::Linear out_{nullptr};
};
TORCH_MODULE(Attention);

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptShape& shape);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::LayerNorm norm1_{nullptr};
  Attention attention_{nullptr};
  torch::nn::LayerNorm norm2_{nullptr};
  torch::nn::Linear up_{nullptr};
  torch::nn::Linear down_{nullptr};
};
TORCH_MODULE(Block);

/// The model of bench/peers/gpt.py, in plain LibTorch: the same arithmetic in the same order.
class GptImpl : public torch::nn::Module {
 public:
  /// Called before each block with its number and its input, and after the last one with their count and its output.
  using BlockWatcher = std::function<void(std::int64_t block, const at::Tensor& x)>;

  explicit GptImpl(const GptShape& shape);
  at::Tensor forward(const at::Tensor& tokens);
  void watch_blocks(BlockWatcher watcher) { watcher_ = std::move(watcher); }

 private:
  BlockWatcher watcher_;
  torch::nn::Embedding tokens_{nullptr};
  torch::nn::Embedding positions_{nullptr};
  torch::nn::ModuleList blocks_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Gpt);

/// The same weights as the peer's, bit for bit.
Gpt make_gpt(const GptShape& shape = {});

struct Batch {
  at::Tensor tokens;   ///< [batch, sequence]
  at::Tensor targets;  ///< [batch * sequence]

  Batch on(const at::Device& device) const { return {tokens.to(device), targets.to(device)}; }
};
/// The same as the peer's of this rank.
Batch make_batch(int rank, const GptShape& shape = {});

at::Tensor loss_of(Gpt& model, const Batch& batch);

}  // namespace bench
