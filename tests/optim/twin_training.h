#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace tessera::testing {

/// Numbers that look irregular, from a formula: ranks that are threads share LibTorch's generator.
inline at::Tensor waves(at::IntArrayRef shape, double pitch, at::ScalarType dtype) {
  const at::Tensor index = at::arange(c10::multiply_integers(shape), at::kDouble);
  return (at::sin(index * pitch) * at::cos(index * 0.37)).to(dtype).view(shape);
}

/// Matrices and vectors of sizes that end inside a vector register.
inline std::vector<at::Tensor> make_parameters(at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{33, 17}, {64, 64}, {129}, {5}, {}}) {
    parameters.push_back(waves(shape, 0.11, dtype).set_requires_grad(true));
  }
  return parameters;
}

/// Decays the matrices and not the rest, which also has a learning rate of its own.
inline std::vector<torch::optim::OptimizerParamGroup> two_groups(const std::vector<at::Tensor>& parameters,
                                                                 bool amsgrad) {
  const auto matrices = torch::optim::AdamWOptions(1e-2).betas({0.8, 0.95}).weight_decay(0.1).amsgrad(amsgrad);
  const auto others = torch::optim::AdamWOptions(2e-2).betas({0.9, 0.98}).eps(1e-6).weight_decay(0).amsgrad(amsgrad);
  return {{{parameters.begin(), parameters.begin() + 2}, std::make_unique<torch::optim::AdamWOptions>(matrices)},
          {{parameters.begin() + 2, parameters.end()}, std::make_unique<torch::optim::AdamWOptions>(others)}};
}

/// Gradients that depend on the parameters, as in a training, and differ in size from step to step.
inline void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor target = waves(parameter.sizes(), 0.05 * (step % 7 + 1), parameter.scalar_type());
    parameter.mutable_grad() = (parameter - target) * (step % 10 == 3 ? 20 : 1);
  }
}

template <class Optimizer>
void train(Optimizer& optimizer, const std::vector<at::Tensor>& parameters, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    set_gradients(parameters, step);
    optimizer.step();
    optimizer.zero_grad();
  }
}

inline double greatest_difference(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  const at::NoGradGuard no_grad;
  double greatest = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    greatest = std::max(greatest, (one[i] - other[i]).abs().max().item<double>());
  }
  return greatest;
}

inline torch::optim::AdamWParamState& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  return static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

}  // namespace tessera::testing
