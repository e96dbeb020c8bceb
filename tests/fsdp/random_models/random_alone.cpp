#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/random_models/random_check.h"
#include "fsdp/random_models/random_model.h"

namespace tessera::testing {
namespace {

using at::Tensor;

std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

void put_back(const std::vector<Tensor>& values, const std::vector<Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(values[i]);
}

struct Listed {
  std::vector<std::pair<std::string, Tensor>> parameters;  // each once
  bool has_shared = false;
};

Listed list_parameters(const Node& model) {
  Listed listed;
  std::set<const void*> seen;
  for (const auto& entry : model.named_parameters()) {
    if (seen.insert(entry.value().unsafeGetTensorImpl()).second) {
      listed.parameters.emplace_back(entry.key(), entry.value());
    } else {
      listed.has_shared = true;
    }
  }
  return listed;
}

/// Gradients of all ranks' batches, with the buffers that rank 0 has.
Expected::Step play_all_ranks(const RandomCase& one, int step, Node& model, StepWays ways) {
  Expected::Step result;
  ways.may_recompute = false;
  ways.loss_weight = 1.0 / one.num_ranks;
  result.evaluations = play_step(one, step, 0, model, ways);
  const auto buffers = model.buffers();
  const auto of_rank_0 = copies_of(buffers);
  for (int rank = 1; rank < one.num_ranks; ++rank) play_step(one, step, rank, model, ways);
  put_back(of_rank_0, buffers);

  double squares = 0;
  for (const auto& [name, parameter] : list_parameters(model).parameters) {
    const Tensor& gradient = parameter.grad();
    result.gradients[name] = gradient.defined() ? gradient.clone() : Tensor();
    if (!gradient.defined()) continue;
    squares += gradient.square().sum().item<double>();
    result.largest = std::max(result.largest, gradient.abs().max().item<double>());
  }
  result.norm = std::sqrt(squares);
  return result;
}

void note_kind(const Listed& listed, const Expected::Step& step, Expected& expected) {
  expected.shares = listed.has_shared;
  for (const auto& [name, parameter] : listed.parameters) {
    if (!parameter.requires_grad()) expected.freezes = true;
    if (parameter.requires_grad() && !step.gradients.at(name).defined()) expected.leaves_unused = true;
  }
}

void update(const Listed& listed, double factor) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : listed.parameters) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad() * (factor * kLearningRate));
    parameter.mutable_grad() = Tensor();
  }
}

}  // namespace

Expected train_alone(const RandomCase& one) {
  const NodePtr model = make_random_model(one.seed);
  const Listed listed = list_parameters(*model);
  Expected expected;
  int num_then = 0;
  int num_else = 0;
  StepWays ways;
  ways.num_then = &num_then;
  ways.num_else = &num_else;
  for (std::size_t step = 0; step < one.steps.size(); ++step) {
    const Expected::Step& done = expected.steps.emplace_back(play_all_ranks(one, static_cast<int>(step), *model, ways));
    note_kind(listed, done, expected);
    const double most = one.steps[step].max_norm;
    update(listed, most > 0 && done.norm > most ? most / done.norm : 1);
  }
  for (const auto& entry : model->named_parameters()) expected.state[entry.key()] = entry.value().detach().clone();
  for (const auto& entry : model->named_buffers()) expected.state[entry.key()] = entry.value().clone();
  expected.branches = num_then > 0 && num_else > 0;
  return expected;
}

}  // namespace tessera::testing
