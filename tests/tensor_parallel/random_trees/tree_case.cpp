#include "tensor_parallel/random_trees/tree_case.h"

#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "fsdp/random_models/dice.h"
#include "support/require.h"
#include "support/whole_copy.h"
#include "tensor_parallel/random_trees/random_plan.h"
#include "tensor_parallel/random_trees/random_tree.h"

namespace tessera::testing {
namespace {

using at::Tensor;

constexpr double kTolerance = 1e-9;
// Gradients that are zero but for rounding, as of a bias before a BatchNorm, are judged beside those of the model.
constexpr double kNoise = 1e-4;
// AdamW would make them as large as any other, and rounding differs with the cuts.
constexpr double kEpsilon = 1e-6;

using Named = std::vector<std::pair<std::string, Tensor>>;
/// Clips the gradients of these parameters and returns their norm.
using Clip = std::function<double(const std::vector<Tensor>&, double)>;

/// Each once, though several modules may hold it.
Named parameters_once(const Node& model) {
  Named found;
  std::set<const void*> seen;
  for (const auto& entry : model.named_parameters()) {
    if (seen.insert(entry.value().unsafeGetTensorImpl()).second) found.emplace_back(entry.key(), entry.value());
  }
  return found;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(TreeCase::Optimizer kind, const std::vector<Tensor>& tensors) {
  const auto adamw = torch::optim::AdamWOptions(1e-2).eps(kEpsilon);
  switch (kind) {
    case TreeCase::Optimizer::kSgd:
      return std::make_unique<torch::optim::SGD>(tensors, torch::optim::SGDOptions(kLearningRate).momentum(0.9));
    case TreeCase::Optimizer::kAdamW:
      return std::make_unique<torch::optim::AdamW>(tensors, adamw);
    case TreeCase::Optimizer::kFusedAdamW:
      break;
  }
  return std::make_unique<optim::AdamW>(tensors, adamw);
}

double largest_of(const Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.to(torch::kDouble).abs().max().item<double>() : 0;
}

void note_gradients(const Named& parameters, const std::string& when, TreeResult& result) {
  double largest = 0;
  std::vector<Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    const Tensor& gradient = parameter.grad();
    gradients.push_back(gradient.defined() ? whole_copy(gradient) : Tensor());
    largest = std::max(largest, largest_of(gradients.back()));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double scale = std::max(largest_of(gradients[i]), kNoise * largest);
    result.push_back({"the gradient of " + parameters[i].first + when, gradients[i], scale});
  }
}

void note_all(const std::vector<Tensor>& tensors, const std::string& what, TreeResult& result) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor copy = whole_copy(tensors[i]);
    result.push_back({what + " " + std::to_string(i), copy, largest_of(copy)});
  }
}

TreeResult train_tree(const TreeCase& one, Node& model, bool may_recompute, const Clip& clip) {
  TreeResult result;
  const Named parameters = parameters_once(model);
  std::vector<Tensor> tensors;
  for (const auto& [name, parameter] : parameters) tensors.push_back(parameter);
  const auto optimizer = make_optimizer(one.optimizer, tensors);
  for (std::size_t step = 0; step < one.steps.steps.size(); ++step) {
    const std::string when = " in step " + std::to_string(step);
    optimizer->zero_grad();
    std::vector<Tensor> losses;
    StepWays ways;
    ways.may_recompute = may_recompute;
    ways.losses = &losses;
    const auto evaluations = play_step(one.steps, static_cast<int>(step), 0, model, ways);
    note_all(losses, "loss" + when, result);
    note_all(evaluations, "evaluation" + when, result);
    note_gradients(parameters, when, result);
    if (const double most = one.steps.steps[step].max_norm; most > 0) {
      const double norm = clip(tensors, most);
      result.push_back({"the norm" + when, torch::tensor(norm, torch::kDouble), norm});
      note_gradients(parameters, when + ", clipped", result);
    }
    optimizer->step();
  }
  for (const auto& [name, parameter] : parameters) note_all({parameter}, "at the end " + name, result);
  for (const auto& entry : model.named_buffers()) note_all({entry.value()}, "at the end " + entry.key(), result);
  return result;
}

/// As tessera::clip_grad_norm(); LibTorch's divides by a little more than the norm.
double clip_plainly(const std::vector<Tensor>& tensors, double most) {
  const torch::NoGradGuard no_grad;
  double squares = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.grad().defined()) squares += tensor.grad().square().sum().item<double>();
  }
  const double norm = std::sqrt(squares);
  for (const Tensor& tensor : tensors) {
    if (tensor.grad().defined() && norm > most) tensor.grad().mul_(most / norm);
  }
  return norm;
}

void require_same_value(const TreeValue& found, const TreeValue& expected, const std::string& where) {
  const std::string what = expected.name + where;
  require_equal(found.tensor.defined(), expected.tensor.defined(), what + " is there");
  if (!expected.tensor.defined()) return;
  require_equal(found.tensor.sizes().vec(), expected.tensor.sizes().vec(), "the shape of " + what);
  const double difference = largest_of(found.tensor.to(torch::kDouble) - expected.tensor.to(torch::kDouble));
  // Not the reverse: a difference that is no number must not pass.
  require(difference <= kTolerance * std::max(expected.scale, kNoise * kNoise),
          what + " differs by " + text_of(difference) + ", and its largest value is " + text_of(expected.scale));
}

const char* name_of(TreeCase::Optimizer optimizer) {
  switch (optimizer) {
    case TreeCase::Optimizer::kSgd:
      return "SGD";
    case TreeCase::Optimizer::kAdamW:
      return "AdamW";
    case TreeCase::Optimizer::kFusedAdamW:
      return "fused AdamW";
  }
  return "";
}

}  // namespace

TreeCase make_tree_case(std::uint64_t seed) {
  Dice dice(seed + 4'000'003);
  TreeCase one;
  one.steps = make_random_case(seed);
  one.steps.steps.resize(static_cast<std::size_t>(1 + dice.below(2)));
  one.plan = make_random_plan(*make_random_tree(seed), seed);
  one.options.init_sync(dice.chance(70));
  one.clips_with_torch = dice.chance(50);
  one.optimizer = dice.pick(std::vector<TreeCase::Optimizer>{TreeCase::Optimizer::kSgd, TreeCase::Optimizer::kAdamW,
                                                             TreeCase::Optimizer::kFusedAdamW});
  return one;
}

std::string TreeCase::text() const {
  std::string text = "seed " + std::to_string(steps.seed) + ", " + std::to_string(steps.num_ranks) + " ranks, " +
                     name_of(optimizer) + (options.init_sync() ? "" : ", without init_sync") + steps.steps_text();
  for (const std::string& line : plan.lines()) text += "\nplan: " + line;
  return text;
}

TreeResult train_tree_alone(const TreeCase& one) {
  const Clip clip = [&](const std::vector<Tensor>& tensors, double most) {
    return one.clips_with_torch ? torch::nn::utils::clip_grad_norm_(tensors, most) : clip_plainly(tensors, most);
  };
  return train_tree(one, *make_random_tree(one.steps.seed), false, clip);
}

void require_same_when_cut(const TreeCase& one, const TreeResult& expected, const World& world) {
  const NodePtr model = make_random_tree(one.steps.seed);
  if (world.rank() > 0 && one.options.init_sync()) {
    // What rank 0 broadcasts at the start must replace this.
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : model->parameters()) parameter.fill_(100 + world.rank());
  }
  const TensorParallelModel parallel = tensor_parallel(model, world, one.plan, one.options);
  const Clip clip = [&](const std::vector<Tensor>& tensors, double most) {
    return one.clips_with_torch ? torch::nn::utils::clip_grad_norm_(tensors, most) : clip_grad_norm(parallel, most);
  };
  const TreeResult found = train_tree(one, *model, true, clip);
  require_equal(found.size(), expected.size(), "number of values");
  const std::string where = " on rank " + std::to_string(world.rank());
  for (std::size_t i = 0; i < expected.size(); ++i) require_same_value(found[i], expected[i], where);
}

}  // namespace tessera::testing
