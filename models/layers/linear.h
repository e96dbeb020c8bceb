#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace tessera::models {

/// y = x W^T + b. As torch::nn::Linear, but the bias is added inside the matrix product, as Python does it: for inputs
/// of three dimensions LibTorch's own adds it in a pass of its own, which is slower and in bf16 gives other bits.
/// Weight and bias start as zeros; the model that holds it gives them their values.
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(std::int64_t in_features, std::int64_t out_features);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  ///< [out_features, in_features]
  at::Tensor bias;    ///< [out_features]
};
TORCH_MODULE(Linear);

}  // namespace tessera::models
