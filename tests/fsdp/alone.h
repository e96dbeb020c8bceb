#pragma once

#include <tessera/comm/world.h>
#include <tessera/fsdp/fully_shard.h>

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::testing {

using Values = std::map<std::string, at::Tensor>;
using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;
using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<OptimizerPointer(const NamedParameters&)>;

/// Values that differ by place and phase.
inline at::Tensor wave(at::IntArrayRef shape, double phase, at::ScalarType dtype = at::kDouble) {
  const auto count = c10::multiply_integers(shape);
  return at::sin(at::arange(count, at::kDouble) * 0.37 + 1.7 * phase).view(shape).to(dtype);
}

inline void fill(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : model.parameters()) {
    parameter.copy_(0.4 * wave(parameter.sizes(), ++phase, parameter.scalar_type()));
  }
}

inline std::vector<at::Tensor> tensors_of(const NamedParameters& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

inline OptimizerPointer momentum_sgd(const NamedParameters& named) {
  return std::make_unique<torch::optim::SGD>(tensors_of(named), torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// Every module with parameters is a unit, and nothing stays whole.
inline FsdpOptions small_units() { return FsdpOptions().auto_wrap(wrap_by_size(1)).min_num_params(0); }

/// A training that is the same on one process and on several ranks.
template <class Model>
struct Training {
  /// Runs forward and backward of a part of the batch; each loss is multiplied by `share` first.
  std::function<void(Model& model, int step, int part, double share)> pass;
  int num_ranks = 2;
  FsdpOptions options = small_units();
  MakeOptimizer make_optimizer = momentum_sgd;
  int num_steps = 6;
  /// Runs between backward and the optimizer; the sharded model is null on one process.
  std::function<void(Model& model, const ShardedModel* sharded)> before_step = nullptr;
};

template <class Model>
Values train_alone(const Training<Model>& training) {
  auto model = std::make_shared<Model>();
  fill(*model);
  NamedParameters named;
  // Each once: LibTorch's optimizers step a parameter as often as they are given it.
  std::set<const c10::TensorImpl*> seen;
  for (const auto& entry : model->named_parameters()) {
    if (!entry.value().requires_grad() || !seen.insert(entry.value().unsafeGetTensorImpl()).second) continue;
    named.emplace_back(entry.key(), entry.value());
  }
  const auto optimizer = training.make_optimizer(named);
  for (int step = 0; step < training.num_steps; ++step) {
    optimizer->zero_grad();
    for (int part = 0; part < training.num_ranks; ++part) training.pass(*model, step, part, 1.0 / training.num_ranks);
    if (training.before_step) training.before_step(*model, nullptr);
    optimizer->step();
  }
  Values values;
  for (const auto& entry : model->named_parameters()) values[entry.key()] = entry.value().detach().clone();
  return values;
}

/// `watch` sees the handle and the model at the end.
template <class Model>
Values train_sharded(const Training<Model>& training, const World& world,
                     const std::function<void(const ShardedModel&, Model&)>& watch = nullptr) {
  auto model = std::make_shared<Model>();
  fill(*model);
  const ShardedModel sharded = fully_shard(model, world, training.options);
  const auto optimizer = training.make_optimizer(sharded.named_parameters());
  for (int step = 0; step < training.num_steps; ++step) {
    optimizer->zero_grad();
    training.pass(*model, step, world.rank(), 1.0);
    if (training.before_step) training.before_step(*model, &sharded);
    optimizer->step();
  }
  if (watch) watch(sharded, *model);
  return sharded.full_state_dict();
}

inline void expect_close(const Values& found, const Values& expected, double tolerance = 1e-10) {
  for (const auto& [name, value] : expected) {
    if (!found.contains(name)) {
      // A parameter that the model holds in two places has the name of the first.
      EXPECT_TRUE(name.ends_with("tied")) << name << " is missing";
      continue;
    }
    const double difference = (found.at(name) - value).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * std::max(value.abs().max().item<double>(), 1e-30)) << name;
  }
}

/// The weights of the ranks are those of one process.
template <class Model>
void expect_same_as_alone(const Training<Model>& training,
                          const std::function<void(const ShardedModel&, Model&)>& watch = nullptr) {
  const Values expected = train_alone(training);
  run_threads(training.num_ranks, [&](const World& world) {
    const Values found = train_sharded(training, world, watch);
    EXPECT_FALSE(found.empty());
    expect_close(found, expected);
  });
}

}  // namespace tessera::testing
