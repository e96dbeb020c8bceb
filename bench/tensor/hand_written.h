#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpt/gpt.h"

namespace bench {

/// The GPT as one writes it for tensor parallelism by hand, with the same cuts as ours has: heads, columns and rows of
/// the layers, and the vocabulary of the head and the loss.
class HandWrittenGpt {
 public:
  /// Takes this rank's part of the model's weights.
  HandWrittenGpt(const Gpt& whole, const GptShape& shape, const tessera::Communicator& comm);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  at::Tensor loss(const Batch& batch) const;

 private:
  struct Linear {
    at::Tensor weight;
    at::Tensor bias;
  };
  struct Norm {
    at::Tensor weight;
    at::Tensor bias;
  };
  struct Block {
    Norm norm1;
    Linear query, key, value, out;
    Norm norm2;
    Linear up, down;
  };

  Linear columns(const torch::nn::Module& linear);
  Linear rows(const torch::nn::Module& linear);
  Norm norm(const torch::nn::Module& norm);
  at::Tensor kept(const at::Tensor& part);

  at::Tensor normalised(const Norm& norm, const at::Tensor& x) const;
  at::Tensor summed(const Linear& linear, const at::Tensor& x) const;
  at::Tensor attention(const Block& block, const at::Tensor& x) const;
  at::Tensor logits(const at::Tensor& tokens) const;

  GptShape shape_;
  tessera::Communicator comm_;
  std::vector<at::Tensor> parameters_;
  at::Tensor tokens_;
  at::Tensor positions_;
  std::vector<Block> blocks_;
  Norm norm_;
  at::Tensor head_;
};

}  // namespace bench
