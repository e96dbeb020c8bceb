#pragma once

#include <torch/torch.h>

#include <memory>

namespace tessera::testing {

/// The same values for the same seed, whatever else runs.
inline at::Tensor random_values(at::IntArrayRef shape, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

/// In double, with weights that depend on nothing but the model's type.
template <class Model>
std::shared_ptr<Model> make_model() {
  auto model = std::make_shared<Model>();
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  std::uint64_t seed = 1;
  for (const at::Tensor& parameter : model->parameters())
    parameter.copy_(random_values(parameter.sizes(), seed++) * 0.3);
  return model;
}

struct MlpImpl : torch::nn::Cloneable<MlpImpl> {
  MlpImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 16));
    second = register_module("second", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }

  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};
TORCH_MODULE(Mlp);

}  // namespace tessera::testing
