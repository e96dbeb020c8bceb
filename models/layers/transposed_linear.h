#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace tessera::models {

/// y = x W + b. As torch::nn::Linear, but the weight is kept the other way round, as Hugging Face's GPT-2 has it (there
/// it is called Conv1D), so that `transformers` reads the files of a checkpoint as they are. The bias is added inside
/// the matrix product. For inputs of three dimensions torch::nn::Linear adds it in a separate pass, which is slower and
/// in bf16 gives other bits than Python.
/// Weight and bias start as zeros; the model that holds it gives them their values.
class TransposedLinearImpl : public torch::nn::Module {
 public:
  TransposedLinearImpl(std::int64_t in_features, std::int64_t out_features);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  ///< [in_features, out_features]
  at::Tensor bias;    ///< [out_features]
};
TORCH_MODULE(TransposedLinear);

}  // namespace tessera::models
