#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

/// Tensors of a model with their full names ("blocks.0.attn.weight").
struct NamedTensors {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

/// The parameters of this rank that require gradients, each once however often the model holds it. Without those that a
/// pipeline has put on other ranks. Throws ConfigError when there is none.
NamedTensors trained_parameters_of(const torch::nn::Module& model);
/// All parameters, frozen ones too.
NamedTensors parameters_of(const torch::nn::Module& model);
/// All parameters, frozen ones too, and all buffers that have a value.
NamedTensors state_of(const torch::nn::Module& model);
NamedTensors buffers_of(const torch::nn::Module& model);
/// Those of them that this rank has: without what a pipeline has put on other ranks.
NamedTensors here(NamedTensors tensors);

}  // namespace tessera
