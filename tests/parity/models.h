#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera::testing {

/// A model that knows nothing of Tessera, with data and a loss of its own. Weights and data come from formulas: ranks
/// that are threads share LibTorch's random generator.
struct ParityModel : torch::nn::Module {
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
  virtual torch::Tensor input(int step, int part) const = 0;
  /// The mean over the batch, where the output is.
  virtual torch::Tensor loss(const torch::Tensor& output, int step, int part) const = 0;
};

/// Each rank has one of its own, where there are several.
inline torch::Device device_of(torch::DeviceType type, int rank) {
  return {type, static_cast<torch::DeviceIndex>(type == torch::kCPU ? -1 : rank)};
}

/// "gpt", "conv" (with BatchNorm), "lstm", "transformer", "attention", "sequential", "gpt2" (the library's own),
/// "bert", "vit", "resnet", "unet" (with skips over all that lies below a level) and "function" (with a
/// torch::autograd::Function). "recomputed gpt" is the first one with checkpoints, one of them nested. "transformer",
/// "gpt2", "bert" and "vit" also exist as "gpt2 with dropout".
std::shared_ptr<ParityModel> make_parity_model(const std::string& name, torch::Dtype dtype);

/// The same with random weights, as models have before they are trained, the smaller the more values an element is made
/// of, so that rounding does not grow from layer to layer. The formula's smooth ones make matrices of low rank, and
/// biases near one, so that norms and sums cancel most digits of single precision, in one process too.
std::shared_ptr<ParityModel> make_random_parity_model(const std::string& name, torch::Dtype dtype);

/// sin(number * k + phase) for k = 0, 1, ...: values that differ for every (step, part).
torch::Tensor formula(at::IntArrayRef shape, double phase, torch::Dtype dtype);

/// Gives every parameter its values, by its place in the model.
void fill_by_formula(torch::nn::Module& model);

}  // namespace tessera::testing
