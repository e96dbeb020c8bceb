// What one rank does alone with parameters that are whole, while the others do nothing: nobody may wait for it.
#include <gtest/gtest.h>

#include <functional>

#include "fsdp/chain.h"

namespace tessera::testing {
namespace {

/// With a buffer, which ranks take from rank 0 when a forward begins.
struct ScaledChain : Chain {
  ScaledChain() : scale(register_buffer("scale", at::ones({8}, at::kDouble))) {}
  at::Tensor forward(const at::Tensor& x) override { return third(torch::tanh(second(torch::tanh(first(x) * scale)))); }
  at::Tensor scale;
};

/// `by_one` runs on rank 0 alone between a backward and the optimizer, inside gather(); `by_all` runs behind it.
void expect_training_goes_on(const FsdpOptions& options, const std::function<void(ScaledChain&)>& by_one,
                             const std::function<void(ScaledChain&)>& by_all = nullptr) {
  Training<ScaledChain> training{.pass = one_backward<ScaledChain>, .options = options};
  const Values expected = train_alone(training);
  run_threads(
      2,
      [&](const World& world) {
        Training<ScaledChain> mine = training;
        mine.before_step = [&](ScaledChain& model, const ShardedModel* sharded) {
          {
            const auto whole = sharded->gather();
            if (world.rank() == 0) by_one(model);
          }
          if (by_all) by_all(model);
        };
        expect_close(train_sharded(mine, world), expected);
      },
      WorldOptions().timeout(std::chrono::seconds(10)));
}

void log(ScaledChain& model) {
  for (const at::Tensor& one : model.parameters()) EXPECT_GT(one.detach().norm().item<double>(), 0);
}

void evaluate(ScaledChain& model) {
  const torch::NoGradGuard no_grad;
  model.forward(chain_input(1, 1));
}

TEST(GatheredAlone, MayBeLogged) {
  for (const auto strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    expect_training_goes_on(small_units().strategy(strategy), log);
  }
}

/// The order of what one rank evaluates tells nothing about the order in which all gather next.
TEST(GatheredAlone, MayBeEvaluatedBeforeAllDoSo) {
  for (const bool ahead : {true, false}) {
    expect_training_goes_on(small_units().limit_all_gathers(ahead), evaluate, evaluate);
  }
}

}  // namespace
}  // namespace tessera::testing
