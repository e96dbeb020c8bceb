// Optimizers on the parameters of a sharded model: each leads to the weights of one process.
#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>

#include <torch/optim.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "fsdp/chain.h"

namespace tessera::testing {
namespace {

template <class Optimizer, class Options>
MakeOptimizer make(const Options& options) {
  return [options](const NamedParameters& named) { return std::make_unique<Optimizer>(tensors_of(named), options); };
}

const std::map<std::string, MakeOptimizer>& optimizers() {
  namespace o = torch::optim;
  static const std::map<std::string, MakeOptimizer> all{
      {"Sgd", make<o::SGD>(o::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01))},
      {"Adam", make<o::Adam>(o::AdamOptions(0.02).weight_decay(0.01).amsgrad(true))},
      {"AdamW", make<o::AdamW>(o::AdamWOptions(0.02).weight_decay(0.1))},
      {"Adagrad", make<o::Adagrad>(o::AdagradOptions(0.05).lr_decay(0.01).weight_decay(0.01))},
      {"RmsProp", make<o::RMSprop>(o::RMSpropOptions(0.01).momentum(0.5).centered(true))},
      {"FusedAdamW", make<optim::AdamW>(optim::AdamWOptions(0.02).weight_decay(0.1))}};
  return all;
}

class ShardedOptimizers : public ::testing::TestWithParam<std::string> {};

TEST_P(ShardedOptimizers, LeadToTheWeightsOfOneProcess) {
  for (const int num_ranks : {2, 3}) {
    for (const bool orig : {false, true}) {
      expect_same_as_alone<Chain>({.pass = one_backward<Chain>,
                                   .num_ranks = num_ranks,
                                   .options = small_units().use_orig_params(orig).min_num_params(9),
                                   .make_optimizer = optimizers().at(GetParam()),
                                   .num_steps = 10});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShardedOptimizers,
                         ::testing::Values("Sgd", "Adam", "AdamW", "Adagrad", "RmsProp", "FusedAdamW"),
                         [](const auto& one) { return one.param; });

/// Weights decay, biases do not.
OptimizerPointer in_groups(const NamedParameters& named) {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> others;
  for (const auto& [name, parameter] : named) (name.ends_with("weight") ? weights : others).push_back(parameter);
  using torch::optim::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(weights, std::make_unique<AdamWOptions>(AdamWOptions(0.02).weight_decay(0.3)));
  groups.emplace_back(others, std::make_unique<AdamWOptions>(AdamWOptions(0.01).weight_decay(0)));
  return std::make_unique<torch::optim::AdamW>(groups, AdamWOptions(0.02));
}

TEST(OriginalParameters, MayBeGroupedByName) {
  for (const int num_ranks : {2, 3}) {
    expect_same_as_alone<Chain>({.pass = one_backward<Chain>,
                                 .num_ranks = num_ranks,
                                 .options = small_units().auto_wrap(wrap_none()).use_orig_params(true),
                                 .make_optimizer = in_groups});
  }
}

/// One of the two middle layers is left out; with data that differs between ranks, on one rank only.
struct Choice : Chain {
  at::Tensor forward(const at::Tensor& x) override {
    return third(torch::tanh((uses_second ? second : spare)(first(x))));
  }
  torch::nn::Linear spare = register_module("spare", [] {
    torch::nn::Linear layer(8, 8);
    layer->to(at::kDouble);
    return layer;
  }());
  bool uses_second = true;
};

FsdpOptions one_unit_by_name() { return small_units().auto_wrap(wrap_none()).use_orig_params(true); }

MakeOptimizer decaying() { return optimizers().at("AdamW"); }

TEST(OriginalParameters, ThatNoRankUsesAreNotStepped) {
  const auto watch = [](const ShardedModel& sharded, Choice&) {
    for (const auto& [name, parameter] : sharded.named_parameters()) {
      EXPECT_EQ(parameter.grad().defined(), !name.starts_with("spare")) << name;
    }
  };
  expect_same_as_alone<Choice>(
      {.pass = one_backward<Choice>, .num_ranks = 3, .options = one_unit_by_name(), .make_optimizer = decaying()},
      watch);
}

TEST(OriginalParameters, ThatOneRankUsesAreSteppedOnAll) {
  const auto pass = [](Choice& model, int step, int part, double share) {
    // Part 1 takes the other layer in some steps; in the last ones nobody does.
    model.uses_second = part != 1 || step > 3;
    one_backward(model, step, part, share);
  };
  expect_same_as_alone<Choice>(
      {.pass = pass, .num_ranks = 3, .options = one_unit_by_name(), .make_optimizer = decaying(), .num_steps = 8});
}

TEST(OriginalParameters, KeepTheirGradientsApartWhenSomeAreCleared) {
  // Two backwards: the second one adds to what the first has left, but for the layer that was cleared.
  const auto train = [](const World* world) {
    auto model = std::make_shared<Choice>();
    fill(*model);
    std::vector<ShardedModel> sharded;
    if (world) sharded.push_back(fully_shard(model, *world, one_unit_by_name()));
    NamedParameters named;
    if (world) named = sharded[0].named_parameters();
    if (!world) {
      for (const auto& entry : model->named_parameters()) named.emplace_back(entry.key(), entry.value());
    }
    const auto optimizer = decaying()(named);
    for (int step = 0; step < 2; ++step) {
      for (int part = 0; part < 2; ++part) {
        if (world && part != world->rank()) continue;
        one_backward(*model, step, part, world ? 1.0 : 0.5);
      }
      for (auto& [name, parameter] : named) {
        if (step == 0 && name == "third.weight") parameter.mutable_grad().reset();
      }
    }
    optimizer->step();
    Values values;
    if (world) return sharded[0].full_state_dict();
    for (const auto& entry : model->named_parameters()) values[entry.key()] = entry.value().detach();
    return values;
  };
  const Values expected = train(nullptr);
  run_threads(2, [&](const World& world) { expect_close(train(&world), expected); });
}

TEST(OriginalParameters, MayBeFrozenLater) {
  const auto pass = [](Chain& model, int step, int part, double share) {
    if (step == 3) model.second->weight.set_requires_grad(false);
    one_backward(model, step, part, share);
  };
  expect_same_as_alone<Chain>({.pass = pass, .options = one_unit_by_name(), .make_optimizer = decaying()});
}

enum class Layout { kPlain, kOneUnit, kOriginal, kNoShard, kHybrid, kHybridOriginal };

ShardedModel shard_as(Layout layout, const std::shared_ptr<Choice>& model, const World& world) {
  FsdpOptions options = small_units().min_num_params(9);
  if (layout == Layout::kOneUnit) options.auto_wrap(wrap_none());
  if (layout == Layout::kOriginal || layout == Layout::kHybridOriginal) options.use_orig_params(true);
  if (layout == Layout::kNoShard) options.strategy(ShardingStrategy::kNoShard);
  if (layout != Layout::kHybrid && layout != Layout::kHybridOriginal) return fully_shard(model, world, options);
  const auto shards = world.comm().split_by([](int rank) { return rank / 2; }, "shards");
  const auto replicas = world.comm().split_by([](int rank) { return rank % 2; }, "replicas");
  return fully_shard(model, shards, replicas, options);
}

/// The norms of some steps, and the weights after them. In every other step a layer has no gradient.
std::pair<std::vector<double>, Values> train_clipped(const World* world, Layout layout) {
  auto model = std::make_shared<Choice>();
  fill(*model);
  std::optional<ShardedModel> sharded;
  if (world) sharded = shard_as(layout, model, *world);
  torch::optim::SGD optimizer(world ? sharded->parameters() : model->parameters(), 0.5);
  std::vector<double> norms;
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    model->uses_second = step % 2 == 0;
    for (int part = 0; part < 4; ++part) {
      if (!world || part == world->rank()) one_backward(*model, step, part, world ? 1 : 0.25);
    }
    norms.push_back(world ? clip_grad_norm(*sharded, 0.05) : clip_grad_norm(model->parameters(), 0.05));
    optimizer.step();
  }
  Values values;
  if (world) return {norms, sharded->full_state_dict()};
  for (const auto& entry : model->named_parameters()) values[entry.key()] = entry.value().detach();
  return {norms, values};
}

class ShardedClip : public ::testing::TestWithParam<Layout> {};

TEST_P(ShardedClip, HasTheNormOfOneProcess) {
  const auto [expected_norms, expected] = train_clipped(nullptr, GetParam());
  EXPECT_GT(*std::min_element(expected_norms.begin(), expected_norms.end()), 0.05) << "each step is clipped";
  run_threads(4, [&, &norms = expected_norms, &values = expected](const World& world) {
    const auto [found_norms, found] = train_clipped(&world, GetParam());
    for (std::size_t i = 0; i < found_norms.size(); ++i) EXPECT_NEAR(found_norms[i], norms[i], 1e-12 * norms[i]) << i;
    expect_close(found, values);
  });
}

std::string name_of(Layout layout) {
  static const std::vector<std::string> names{"Plain", "OneUnit", "Original", "NoShard", "Hybrid", "HybridOriginal"};
  return names.at(static_cast<std::size_t>(layout));
}

INSTANTIATE_TEST_SUITE_P(Layouts, ShardedClip,
                         ::testing::Values(Layout::kPlain, Layout::kOneUnit, Layout::kOriginal, Layout::kNoShard,
                                           Layout::kHybrid, Layout::kHybridOriginal),
                         [](const auto& one) { return name_of(one.param); });

}  // namespace
}  // namespace tessera::testing
