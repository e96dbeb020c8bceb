// Ways to run forward and backward, on a sharded model: each trains as on one process.
#include <torch/autograd.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "fsdp/chain.h"

namespace tessera::testing {
namespace {

TEST(ShardedPasses, MayRunForwardSeveralTimesBeforeBackward) {
  const auto pass = [](Chain& model, int step, int part, double share) {
    const auto first = loss_of(model, step, part);
    const auto second = loss_of(model, step + 7, part);
    ((first + second) * share).backward();
  };
  expect_same_as_alone<Chain>({.pass = pass, .num_ranks = 3});
}

TEST(ShardedPasses, MayRunBackwardOfEachForwardLater) {
  const auto pass = [](Chain& model, int step, int part, double share) {
    const auto first = loss_of(model, step, part) * share;
    const auto second = loss_of(model, step + 7, part) * share;
    second.backward();
    first.backward();
  };
  expect_same_as_alone<Chain>({.pass = pass});
  expect_same_as_alone<Chain>({.pass = pass, .options = small_units().use_orig_params(true)});
}

TEST(ShardedPasses, MayRunBackwardTwiceThroughOneGraph) {
  const auto pass = [](Chain& model, int step, int part, double share) {
    const auto loss = loss_of(model, step, part) * share;
    loss.backward({}, /*retain_graph=*/true);
    (loss * 0.5).backward();
  };
  expect_same_as_alone<Chain>({.pass = pass, .num_ranks = 3});
  expect_same_as_alone<Chain>({.pass = pass, .options = small_units().strategy(ShardingStrategy::kShardGradOp)});
}

TEST(ShardedPasses, MayDifferentiateTwice) {
  const auto pass = [](Chain& model, int step, int part, double share) {
    const auto input = chain_input(step, part).requires_grad_();
    const auto slope = torch::autograd::grad({model.forward(input).sum()}, {input}, {}, true, /*create_graph=*/true);
    ((slope[0].norm() - 1).square() * share).backward();
  };
  expect_same_as_alone<Chain>({.pass = pass});
}

TEST(ShardedPasses, ClearGradientsWithTheModelsZeroGrad) {
  for (const bool orig : {false, true}) {
    const auto pass = [](Chain& model, int step, int part, double share) {
      // Gradients that shall not count: one process adds up its parts, so it clears before the first one only.
      if (share == 1.0 || part == 0) {
        loss_of(model, step + 20, part).backward();
        model.zero_grad();
      }
      one_backward(model, step, part, share);
    };
    expect_same_as_alone<Chain>({.pass = pass, .options = small_units().use_orig_params(orig)});
  }
}

/// What torch::autograd::grad gives is not averaged, as it is not with DDP: whoever asks for it gets it.
TEST(ShardedPasses, GiveThisRanksGradientsToWhoAsksForThem) {
  run_threads(2, [](const World& world) {
    const auto alone = filled_chain();
    const auto expected = torch::autograd::grad({loss_of(*alone, 1, world.rank())}, alone->parameters());
    const auto model = filled_chain();
    const ShardedModel sharded = fully_shard(model, world, small_units());
    const auto found = torch::autograd::grad({loss_of(*model, 1, world.rank())}, model->parameters());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::allclose(found[i], expected[i])) << i;
    for (const at::Tensor& shard : sharded.parameters()) EXPECT_FALSE(shard.grad().defined());
    EXPECT_EQ(sharded.statistics().gathered_bytes, 0U) << "the pass is over";
    EXPECT_EQ(sharded.statistics().num_reduce_scatters, 0U);
  });
}

TEST(ShardedPasses, AccumulateWithoutAveraging) {
  const auto train = [](const World* world) {
    const auto model = filled_chain();
    std::vector<ShardedModel> sharded;
    if (world) sharded.push_back(fully_shard(model, *world, small_units()));
    torch::optim::SGD optimizer(world ? sharded[0].parameters() : model->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      for (int micro = 0; micro < 3; ++micro) {
        for (int rank = 0; rank < 2; ++rank) {
          if (world && rank != world->rank()) continue;
          const auto loss = loss_of(*model, step, 2 * micro + rank) / (world ? 3 : 6);
          if (!world || micro == 2) {
            loss.backward();
            continue;
          }
          const auto before = sharded[0].statistics().num_reduce_scatters;
          const auto guard = sharded[0].no_sync();
          loss.backward();
          EXPECT_EQ(sharded[0].statistics().num_reduce_scatters, before);
        }
      }
      optimizer.step();
    }
    Values values;
    if (world) return sharded[0].full_state_dict();
    for (const auto& entry : model->named_parameters()) values[entry.key()] = entry.value().detach();
    return values;
  };
  const Values expected = train(nullptr);
  run_threads(2, [&](const World& world) { expect_close(train(&world), expected); });
}

TEST(ShardedPasses, EvaluateInTheMemoryOfFewUnits) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    run_threads(2, [strategy](const World& world) {
      const auto alone = filled_chain();
      const auto model = filled_chain();
      const ShardedModel sharded = fully_shard(model, world, small_units().strategy(strategy).forward_prefetch(false));
      const torch::NoGradGuard no_grad;
      for (int step = 0; step < 3; ++step) {
        EXPECT_TRUE(torch::equal(model->forward(chain_input(step, 0)), alone->forward(chain_input(step, 0))));
        const auto statistics = sharded.statistics();
        EXPECT_LE(statistics.gathered_bytes, statistics.largest_unit_bytes);
        EXPECT_LE(statistics.peak_gathered_bytes, statistics.largest_unit_bytes);
      }
    });
  }
}

/// Evaluations between steps neither disturb training nor leave old values behind.
TEST(ShardedPasses, EvaluateBetweenSteps) {
  const auto pass = [](Chain& model, int step, int part, double share) {
    one_backward(model, step, part, share);
    const torch::NoGradGuard no_grad;
    model.forward(chain_input(step, part));
  };
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kZero1}) {
    expect_same_as_alone<Chain>({.pass = pass, .options = small_units().strategy(strategy)});
  }
}

struct Fork : Chain {
  at::Tensor walk(const at::Tensor& x, bool detour) {
    const auto y = torch::tanh(first(x));
    return third(detour ? torch::tanh(second(y)) : y);
  }
};

TEST(ShardedPasses, LearnAnotherPath) {
  const auto pass = [](Fork& model, int step, int part, double share) {
    const auto output = model.walk(chain_input(step, part), step / 3 % 2 == 0);
    ((output - wave({kBatch, 2}, step)).square().mean() * share).backward();
  };
  expect_same_as_alone<Fork>({.pass = pass, .num_ranks = 3, .num_steps = 12});
}

TEST(ShardedPasses, GatherEachUnitOncePerPassWhenThePathIsKnown) {
  run_threads(2, [](const World& world) {
    auto model = std::make_shared<Fork>();
    fill(*model);
    const ShardedModel sharded = fully_shard(model, world, small_units());
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    const auto gathers_of_step = [&](bool detour) {
      const auto before = sharded.statistics().num_gathers;
      model->walk(chain_input(0, world.rank()), detour).square().mean().backward();
      optimizer.step();
      return sharded.statistics().num_gathers - before;
    };
    for (int step = 0; step < 3; ++step) gathers_of_step(true);
    // Backward begins with the two units that are still there, and the first one is not needed: data has no gradient.
    EXPECT_EQ(gathers_of_step(true), 3U);
    gathers_of_step(false);
    gathers_of_step(false);
    EXPECT_EQ(gathers_of_step(false), 2U) << "two units are used, and the third is not gathered ahead";
    gathers_of_step(true);
    gathers_of_step(true);
    EXPECT_EQ(gathers_of_step(true), 3U);
  });
}

struct Fragile : Chain {
  at::Tensor forward(const at::Tensor& x) override {
    const auto y = torch::tanh(second(torch::tanh(first(x))));
    if (fails) throw std::runtime_error("on purpose");
    return third(y);
  }
  bool fails = false;
};

TEST(ShardedPasses, GoOnAfterAnExceptionInForward) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    const auto pass = [](Fragile& model, int step, int part, double share) {
      model.fails = step % 2 == 1;
      if (model.fails) {
        EXPECT_THROW(one_backward(model, step, part, share), std::runtime_error);
        model.fails = false;
      }
      one_backward(model, step, part, share);
    };
    expect_same_as_alone<Fragile>({.pass = pass, .options = small_units().strategy(strategy)});
  }
}

/// Throws in backward, when asked to.
struct Trap : torch::autograd::Function<Trap> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool fails) {
    context->saved_data["fails"] = fails;
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (context->saved_data["fails"].toBool()) throw std::runtime_error("on purpose");
    return {gradients[0], at::Tensor()};
  }
};

struct Trapped : Chain {
  at::Tensor forward(const at::Tensor& x) override {
    return third(torch::tanh(second(Trap::apply(torch::tanh(first(x)), fails))));
  }
  bool fails = false;
};

TEST(ShardedPasses, GoOnAfterAnExceptionInBackward) {
  for (const bool orig : {false, true}) {
    // What a broken pass has left of gradients is cleared, as it is by whoever goes on after one.
    const auto train = [orig](const World* world) {
      auto model = std::make_shared<Trapped>();
      fill(*model);
      std::vector<ShardedModel> sharded;
      if (world) sharded.push_back(fully_shard(model, *world, small_units().use_orig_params(orig)));
      torch::optim::SGD optimizer(world ? sharded[0].parameters() : model->parameters(), 0.1);
      for (int step = 0; step < 4; ++step) {
        model->fails = true;
        EXPECT_THROW(loss_of(*model, step, 0).backward(), std::runtime_error);
        model->fails = false;
        optimizer.zero_grad();
        for (int part = 0; part < 2; ++part) {
          if (!world || part == world->rank()) one_backward(*model, step, part, world ? 1.0 : 0.5);
        }
        optimizer.step();
      }
      Values values;
      if (world) return sharded[0].full_state_dict();
      for (const auto& entry : model->named_parameters()) values[entry.key()] = entry.value().detach();
      return values;
    };
    const Values expected = train(nullptr);
    run_threads(2, [&](const World& world) { expect_close(train(&world), expected); });
  }
}

}  // namespace
}  // namespace tessera::testing
