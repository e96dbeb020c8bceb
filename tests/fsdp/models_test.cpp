// Models with something about them, sharded: each trains as on one process.
#include <torch/nn/modules.h>
#include <gtest/gtest.h>

#include "fsdp/chain.h"

namespace tessera::testing {
namespace {

namespace nn = torch::nn;

struct Tied : Chain {
  Tied() {
    fourth = register_module("fourth", nn::Linear(nn::LinearOptions(8, 8).bias(false)));
    fourth->to(at::kDouble);
    // One tensor, registered in two modules.
    fourth->weight = fourth->register_parameter("tied", second->weight);
  }
  at::Tensor forward(const at::Tensor& x) override { return third(torch::tanh(fourth(torch::tanh(second(first(x)))))); }
  nn::Linear fourth{nullptr};
};

struct Shared : Chain {
  at::Tensor forward(const at::Tensor& x) override { return third(second(torch::tanh(second(torch::tanh(first(x)))))); }
};

struct Frozen : Chain {
  Frozen() {
    second->weight.set_requires_grad(false);
    for (auto& parameter : third->parameters()) parameter.set_requires_grad(false);
  }
};

struct Unused : Chain {
  Unused() : never(register_module("never", nn::Linear(4, 4))), half(register_parameter("half", torch::ones({6, 3}))) {
    to(at::kDouble);
  }
  nn::Linear never;
  at::Tensor half;
};

struct WithBuffers : Chain {
  WithBuffers() : norm(register_module("norm", nn::BatchNorm1d(8))) {
    calls = register_buffer("calls", torch::zeros({1}, at::kDouble));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override {
    const torch::NoGradGuard no_grad;
    calls += x.detach().sum();
    const at::AutoGradMode grad(true);
    return third(norm(first(x)));
  }
  nn::BatchNorm1d norm;
  at::Tensor calls;
};

struct TwoTypes : Chain {
  TwoTypes()
      : low(register_module("low", nn::Linear(8, 8))), low_scale(register_parameter("low_scale", torch::ones({8}))) {}
  at::Tensor forward(const at::Tensor& x) override {
    const auto single = low(first(x).to(at::kFloat)) * low_scale;
    return third(torch::tanh(second(single.to(at::kDouble))));
  }
  nn::Linear low;
  at::Tensor low_scale;
};

TEST(ShardedModels, MayTieWeights) {
  expect_same_as_alone<Tied>({.pass = one_backward<Tied>});
  expect_same_as_alone<Tied>(
      {.pass = one_backward<Tied>, .num_ranks = 3, .options = small_units().auto_wrap(wrap_none())});
}

TEST(ShardedModels, MayUseAParameterTwice) {
  expect_same_as_alone<Shared>({.pass = one_backward<Shared>, .num_ranks = 3});
}

TEST(ShardedModels, MayHaveFrozenParameters) {
  const auto watch = [](const ShardedModel& sharded, Frozen& model) {
    EXPECT_FALSE(model.second->weight.grad().defined());
    // The frozen weight lies apart from the bias of its module, which is trained.
    for (const auto& [name, parameter] : sharded.named_parameters()) EXPECT_TRUE(parameter.requires_grad()) << name;
  };
  expect_same_as_alone<Frozen>({.pass = one_backward<Frozen>}, watch);
}

TEST(ShardedModels, MayHaveUnitsThatNobodyUses) {
  const auto watch = [](const ShardedModel& sharded, Unused&) {
    for (const auto& [name, parameter] : sharded.named_parameters()) {
      // "" is the unit of the model's own parameter.
      if (name == "never" || name.empty()) {
        EXPECT_FALSE(parameter.grad().defined()) << name;
      }
    }
  };
  expect_same_as_alone<Unused>({.pass = one_backward<Unused>, .num_ranks = 3}, watch);
}

TEST(ShardedModels, TakeBuffersOfRankZero) {
  run_threads(3, [](const World& world) {
    const Training<WithBuffers> training{.pass = one_backward<WithBuffers>};
    const Values found = train_sharded<WithBuffers>(training, world, nullptr);
    double sum = 0;
    for (int step = 0; step < training.num_steps; ++step) sum += wave({kBatch, 5}, 3 * step).sum().item<double>();
    EXPECT_NEAR(found.at("calls").item<double>(), sum, 1e-12);
    EXPECT_EQ(found.at("norm.num_batches_tracked").item<std::int64_t>(), training.num_steps);
  });
}

TEST(ShardedModels, MayMixTypes) {
  const Training<TwoTypes> training{.pass = one_backward<TwoTypes>, .num_ranks = 3};
  const Values expected = train_alone(training);
  run_threads(3, [&](const World& world) { expect_close(train_sharded(training, world), expected, 1e-5); });
}

TEST(ShardedModels, MayHaveFewerElementsThanRanks) {
  struct Small : nn::Module {
    Small() : scale(register_parameter("scale", torch::ones({2}, at::kDouble))) {}
    at::Tensor forward(const at::Tensor& x) const { return x.narrow(1, 0, 2) * scale; }
    at::Tensor scale;
  };
  const auto watch = [](const ShardedModel& sharded, Small&) {
    std::int64_t held = 0;
    for (const auto& shard : sharded.shards()) held += shard.slice.num_elements();
    EXPECT_EQ(held, 2);
  };
  expect_same_as_alone<Small>({.pass = one_backward<Small>, .num_ranks = 4}, watch);
  expect_same_as_alone<Small>(
      {.pass = one_backward<Small>, .num_ranks = 4, .options = small_units().use_orig_params(true)}, watch);
}

TEST(ShardedModels, KeepSmallParametersWhole) {
  const auto watch = [](const ShardedModel& sharded, Chain& model) {
    std::vector<std::string> names;
    for (const auto& [name, parameter] : sharded.named_parameters()) names.push_back(name);
    // Only weights of 40 and 64 elements are cut; the biases, and the last weight of 16, stay.
    EXPECT_EQ(names,
              (std::vector<std::string>{"first", "second", "first.bias", "second.bias", "third.weight", "third.bias"}));
    EXPECT_TRUE(model.third->weight.grad().defined()) << "it is the model's own, and so is its gradient";
    EXPECT_EQ(sharded.sharded_state_dict().at("third.weight").values.numel(), 16);
  };
  expect_same_as_alone<Chain>(
      {.pass = one_backward<Chain>, .num_ranks = 3, .options = small_units().min_num_params(40)}, watch);
}

TEST(ShardedModels, MayBeSeveralInOneProgram) {
  const auto train = [](const World* world) {
    auto generator = std::make_shared<Chain>();
    auto critic = std::make_shared<Chain>();
    fill(*generator);
    fill(*critic);
    std::vector<ShardedModel> sharded;
    if (world) sharded = {fully_shard(generator, *world, small_units()), fully_shard(critic, *world, small_units())};
    torch::optim::SGD one(world ? sharded[0].parameters() : generator->parameters(), 0.1);
    torch::optim::SGD two(world ? sharded[1].parameters() : critic->parameters(), 0.05);
    for (int step = 0; step < 4; ++step) {
      one.zero_grad();
      two.zero_grad();
      for (int part = 0; part < 2; ++part) {
        if (world && part != world->rank()) continue;
        const auto made = generator->forward(wave({kBatch, 5}, step + part));
        const auto judged = critic->forward(torch::cat({made, wave({kBatch, 3}, part)}, 1));
        (judged.square().mean() / (world ? 1 : 2)).backward();
      }
      one.step();
      two.step();
    }
    Values values;
    if (!world) {
      for (const auto& entry : generator->named_parameters()) values["1." + entry.key()] = entry.value().detach();
      for (const auto& entry : critic->named_parameters()) values["2." + entry.key()] = entry.value().detach();
      return values;
    }
    for (const auto& [name, value] : sharded[0].full_state_dict()) values["1." + name] = value;
    for (const auto& [name, value] : sharded[1].full_state_dict()) values["2." + name] = value;
    return values;
  };
  const Values expected = train(nullptr);
  run_threads(2, [&](const World& world) { expect_close(train(&world), expected); });
}

}  // namespace
}  // namespace tessera::testing
