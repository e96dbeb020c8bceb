#pragma once

#include <tessera/mesh/ranks.h>

#include <torch/nn/module.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace tessera {

/// Batch norm over the batches of all ranks: in training, mean and variance are those of the whole batch, whatever part
/// of it a rank holds (an empty one too). Inputs of shape [batch, features, ...]. Parameters and buffers have the names
/// of `torch::nn::BatchNorm*d`'s, so that weights move between them.
/// Use it in the model instead of `torch::nn::BatchNorm2d`: a C++ model holds its layers in members of fixed type, so
/// they cannot be exchanged from outside.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& given, const Ranks& ranks);

  /// Collective over the ranks, in forward and in backward, when the module is training or tracks no statistics.
  torch::Tensor forward(const torch::Tensor& input);
  /// As LibTorch's: weights are ones, biases zeros, and the statistics start anew.
  void reset();

  torch::nn::BatchNormOptions options;
  torch::Tensor weight;  ///< undefined unless affine
  torch::Tensor bias;
  torch::Tensor running_mean;  ///< undefined unless statistics are tracked
  torch::Tensor running_var;
  torch::Tensor num_batches_tracked;

 private:
  void track(const torch::Tensor& mean, const torch::Tensor& variance, const torch::Tensor& count);

  Communicator comm_;
};

TORCH_MODULE(SyncBatchNorm);

}  // namespace tessera
