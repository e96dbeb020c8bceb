#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tessera::data_parallel {

/// Keeps a clone like the module that it was cloned from.
class Mirror {
 public:
  Mirror(std::shared_ptr<torch::nn::Module> original, std::shared_ptr<torch::nn::Module> clone);

  /// Parameters, buffers, requires_grad and training modes. Blocks: for nothing but copies.
  void refresh();

  /// The clone's parameters, each once, with the original's that each belongs to: one may have several when the model
  /// shares it between layers in a way that clone() does not know.
  struct Pair {
    at::Tensor original;
    at::Tensor clone;
    std::int64_t version = -1;  // of the original when it was copied
  };
  const std::vector<Pair>& parameters() const { return parameters_; }

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> original_modules_;
  std::vector<std::shared_ptr<torch::nn::Module>> clone_modules_;
  std::vector<Pair> parameters_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // original, clone
};

/// Another module like this one, with parameters and buffers of its own. Leaves the default random generator as it was.
/// Throws ConfigError when the module cannot be cloned.
std::shared_ptr<torch::nn::Module> clone_of(const torch::nn::Module& module, at::Device device);

}  // namespace tessera::data_parallel
