#pragma once

#include <tessera/mesh/ranks.h>

#include <torch/nn/module.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace tessera {

/// Batch norm over the batches of all ranks: in training, mean and variance are those of the whole batch, whatever part
/// of it a rank holds (an empty one too). Inputs of shape [batch, features, ...]. Parameters and buffers have the names
/// of `torch::nn::BatchNorm*d`'s, so that weights move between them.
/// Take it in the model where `torch::nn::BatchNorm2d` stood: a C++ model holds its layers in members of fixed type, so
/// nobody can exchange them from outside.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& given, const Ranks& ranks);

  /// Collective over the ranks, in forward and in backward, in training and wherever statistics are not tracked.
  torch::Tensor forward(const torch::Tensor& input);
  /// As LibTorch's: ones and zeros, and the statistics of nothing seen.
  void reset();

  torch::nn::BatchNormOptions options;
  torch::Tensor weight;  ///< undefined unless affine
  torch::Tensor bias;
  torch::Tensor running_mean;  ///< undefined unless statistics are tracked
  torch::Tensor running_var;
  torch::Tensor num_batches_tracked;

 private:
  void track(const torch::Tensor& mean, const torch::Tensor& variance, double count);

  Communicator comm_;
};

TORCH_MODULE(SyncBatchNorm);

}  // namespace tessera
