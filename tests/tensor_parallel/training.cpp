#include "tensor_parallel/training.h"

#include <tessera/optim/adamw.h>
#include <tessera/optim/autocast.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "support/require.h"
#include "support/whole_copy.h"
#include "tensor_parallel/plans.h"

namespace tessera::testing {
namespace {

/// Some gradients are rounding alone, such as that of the bias of k, which softmax cancels. AdamW would make them as
/// large as any other, and rounding differs with the split. Other gradients are far above this.
constexpr double kEpsilon = 1e-6;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TensorCase& training, const ParityModel& model) {
  if (training.uses_adamw) {
    return std::make_unique<optim::AdamW>(model.parameters(), torch::optim::AdamWOptions(1e-2).eps(kEpsilon));
  }
  return std::make_unique<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(5e-2).momentum(0.9));
}

Values train(const TensorCase& training, ParityModel& model) {
  torch::manual_seed(3);
  Values values;
  const auto optimizer = make_optimizer(training, model);
  for (int step = 0; step < training.num_steps; ++step) {
    optimizer->zero_grad();
    const at::Tensor input = model.input(step, 0);
    if (input.is_floating_point()) input.requires_grad_();
    at::Tensor output;
    at::Tensor loss;
    {
      std::optional<Autocast> autocast;
      if (training.uses_autocast) autocast.emplace(at::kBFloat16);
      output = model.forward(input);
      loss = model.loss(output, step, 0);
    }
    loss.backward();
    if (training.dtype == torch::kDouble || step == 0) {
      const std::string at_step = " in step " + std::to_string(step);
      values["output" + at_step] = whole_copy(output);
      if (input.requires_grad()) values["gradient of the input" + at_step] = whole_copy(input.grad());
      for (const auto& item : model.named_parameters()) {
        const at::Tensor& gradient = item.value().grad();
        if (gradient.defined()) values["gradient of " + item.key() + at_step] = whole_copy(gradient);
      }
    }
    optimizer->step();
  }
  for (const auto& item : model.named_parameters()) values[item.key()] = whole_copy(item.value());
  for (const auto& item : model.named_buffers()) values[item.key()] = whole_copy(item.value());
  return values;
}

/// With random weights, as models have before they are trained. The formula's smooth ones make matrices of low rank,
/// and biases near one, so that norms and sums cancel most digits of single precision, in one process too.
std::shared_ptr<ParityModel> make_model(const TensorCase& training) {
  auto model = make_parity_model(training.model, training.dtype);
  const torch::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(11);  // ranks that are threads share LibTorch's
  for (auto& item : model->named_parameters()) {
    const auto values = torch::empty(item.value().sizes(), torch::kDouble).normal_(0, 1, generator);
    const bool is_factor = item.value().dim() == 1 && !item.key().ends_with("bias");  // of a norm
    item.value().copy_(item.value().dim() > 1 ? values * 0.3 : is_factor ? 1 + 0.1 * values : 0.1 * values);
  }
  return model;
}

}  // namespace

Values train_alone(const TensorCase& training) { return train(training, *make_model(training)); }

Values train_cut(const TensorCase& training, const Ranks& ranks) {
  const auto model = make_model(training);
  const auto parallel = tensor_parallel(model, ranks, plan_for(training.model));
  return train(training, *model);
}

std::pair<double, std::string> largest_difference(const Values& found, const Values& expected) {
  require_equal(found.size(), expected.size(), "number of tensors");
  std::pair<double, std::string> largest{0, ""};
  for (const auto& [name, value] : expected) {
    const at::Tensor other = found.at(name);
    require_equal(other.sizes().vec(), value.sizes().vec(), "shape of " + name);
    if (value.numel() == 0) continue;
    const double scale = std::max(value.to(at::kDouble).abs().max().item<double>(), 1e-3);
    const double difference = (other.to(at::kDouble) - value.to(at::kDouble)).abs().max().item<double>() / scale;
    if (std::isnan(difference)) return {INFINITY, name};
    largest = std::max(largest, {difference, name});
  }
  return largest;
}

double distance(const Values& found, const Values& expected) {
  double difference = 0;
  double length = 0;
  for (const auto& [name, value] : expected) {
    difference += (found.at(name).to(at::kDouble) - value.to(at::kDouble)).square().sum().item<double>();
    length += value.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(difference / length);
}

}  // namespace tessera::testing
