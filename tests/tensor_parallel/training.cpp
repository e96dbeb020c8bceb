#include "tensor_parallel/training.h"

#include <tessera/optim/adamw.h>
#include <tessera/optim/autocast.h>

#include <ATen/ATen.h>
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

}  // namespace

Values train_alone(const TensorCase& training) {
  return train(training, *make_random_parity_model(training.model, training.dtype));
}

Values train_cut(const TensorCase& training, const Ranks& ranks) {
  const auto model = make_random_parity_model(training.model, training.dtype);
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
