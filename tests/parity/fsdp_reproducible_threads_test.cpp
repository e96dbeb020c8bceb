#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>

#include <ATen/Parallel.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <set>

#include "parity/models.h"
#include "parity/noisy.h"
#include "parity/reproducible_sharded.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

using Hashes = std::set<std::uint64_t>;

/// The hashes of all ranks.
Hashes hashes(int num_ranks, const std::function<std::uint64_t(const Communicator&)>& train) {
  std::mutex mutex;
  Hashes found;
  run_threads(num_ranks, [&](const World& world) {
    const auto hash = train(world.comm());
    const std::lock_guard lock(mutex);
    found.insert(hash);
  });
  return found;
}

Hashes ddp_hash(int num_steps, const Disturbance& disturbance = {}) {
  return hashes(1, [&](const Communicator& comm) { return train_reproducibly(comm, num_steps, disturbance); });
}

Hashes sharded_hash(int num_ranks, int num_steps, const std::string& variant, const Disturbance& disturbance = {}) {
  return hashes(num_ranks, [&](const Communicator& comm) {
    return train_reproducibly_sharded(comm, num_steps, variant, disturbance);
  });
}

TEST(FsdpReproducible, GivesTheHashOfDdpFor1And2And4And8Ranks) {
  const Hashes expected = ddp_hash(50);
  for (const int num_ranks : {1, 2, 4, 8}) {
    EXPECT_EQ(sharded_hash(num_ranks, 50, "full", {.seed = 3U * num_ranks, .delays = num_ranks > 1 ? 0.01 : 0}),
              expected)
        << num_ranks << " ranks";
  }
}

class FsdpReproducibleStrategies : public ::testing::TestWithParam<std::string> {};

TEST_P(FsdpReproducibleStrategies, GiveTheHashOfDdp) {
  const Hashes expected = ddp_hash(20);
  for (const int num_ranks : {1, 2, 4, 8}) {
    EXPECT_EQ(sharded_hash(num_ranks, 20, GetParam()), expected) << num_ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, FsdpReproducibleStrategies, ::testing::ValuesIn(reproducible_variants()),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::erase(name, ' ');
                           return name;
                         });

TEST(FsdpReproducible, GivesTheHashOfDdpWithTheFusedOptimizerWhichRoundsTheEndOfATensorDifferently) {
  const Disturbance fused{.fused = true};
  const Hashes expected = ddp_hash(20, fused);
  EXPECT_NE(expected, ddp_hash(20)) << "it does not, then";
  for (const int num_ranks : {1, 2, 4}) {
    EXPECT_EQ(sharded_hash(num_ranks, 20, "full", fused), expected) << num_ranks << " ranks";
  }
  EXPECT_EQ(sharded_hash(2, 20, "one unit", fused), expected);
}

TEST(FsdpReproducible, GivesTheHashOfDdpForARecurrentModelAndForRecomputedActivations) {
  for (const auto* model : {"lstm", "recomputed gpt"}) {
    const Disturbance other{.model = model};
    EXPECT_EQ(sharded_hash(4, 10, "full", other), ddp_hash(10, other)) << model;
  }
}

TEST(FsdpReproducible, GivesTheSameHashForMicroBatchesInAnyOrder) {
  const Hashes in_order = ddp_hash(10);
  for (const int num_ranks : {1, 2, 4}) {
    EXPECT_EQ(sharded_hash(num_ranks, 10, "full", {.seed = 5, .shuffle = true}), in_order) << num_ranks << " ranks";
  }
}

// Delays before every second gather, backward and step.
TEST(FsdpReproducibleSlow, IsNotMovedByDelays) {
  const Hashes expected = ddp_hash(50);
  for (const auto* variant : {"full", "grad op", "zero1"}) {
    EXPECT_EQ(sharded_hash(4, 50, variant, {.seed = 17, .delays = 0.5}), expected) << variant;
  }
}

// ---- what is refused ------------------------------------------------------------------------------------------------

FsdpOptions eight() { return FsdpOptions().min_num_params(4).reproducible(true).micro_batches(8); }

TEST(FsdpReproducible, RefusesCountsThatAreNoPowersOfTwo) {
  run_threads(3, [](const World& world) {
    torch::nn::Linear layer(2, 2);
    expect_parts(
        message_of<ConfigError>([&] { fully_shard(layer, world, eight().micro_batches(6)); }),
        {"the options of sharding cannot be met", "a power of two of ranks, the group has 3", "found 6", "(rank "});
    expect_parts(message_of<ConfigError>([&] { fully_shard(layer, world, FsdpOptions().micro_batches(4)); }),
                 {"micro_batches is for reproducible(true) only"});
  });
}

TEST(FsdpReproducible, RefusesModulesThatDependOnTheRank) {
  run_threads(1, [](const World& world) {
    torch::nn::Sequential norm(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
    expect_parts(message_of<ConfigError>([&] { fully_shard(norm, world, eight()); }),
                 {"\"1\", a torch::nn::BatchNorm1dImpl", "GroupNorm"});
    torch::nn::Sequential drop(torch::nn::Dropout(0.5), torch::nn::Linear(2, 2));
    expect_parts(message_of<ConfigError>([&] { fully_shard(drop, world, eight()); }), {"Set its p to 0"});
  });
}

/// Draws random numbers by a function, which no list of modules shows.
TEST(FsdpReproducible, RefusesRandomOperatorsByName) {
  run_threads(2, [](const World& world) {
    // Also when no parameter is sharded.
    for (const std::int64_t smallest : {0, 1000}) {
      const auto model = std::make_shared<Noisy>(0.5);
      const auto sharded = fully_shard(model, world, eight().min_num_params(smallest));
      expect_parts(message_of<ConfigError>([&] { model->forward(at::ones({4, 2})).sum().backward(); }),
                   {"reproducible mode refuses aten::", "Set dropout to 0"});
    }
    // Off, it draws nothing; and what a program draws between the steps is its own affair.
    const auto quiet = std::make_shared<Noisy>(0.0);
    const auto other = fully_shard(quiet, world, eight());
    quiet->forward(at::rand({4, 2})).sum().backward();
  });
}

TEST(FsdpReproducible, RefusesGradientsThatAreStillThere) {
  run_threads(1, [](const World& world) {
    torch::nn::Linear layer(2, 2);
    const auto sharded = fully_shard(layer, world, eight().micro_batches(1));
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    const auto pass = [&] { layer(at::ones({4, 2})).sum().backward(); };
    pass();
    expect_parts(message_of<ConfigError>([&] { sharded.set_micro_batch(1); }),
                 {"expected a micro-batch of 0 to 0, found 1", "rank 0"});
    optimizer.zero_grad(/*set_to_none=*/false);
    pass();
    try {
      pass();
      FAIL() << "gradients were there";
    } catch (const std::exception& error) {
      expect_parts(error.what(), {"call zero_grad()"});
    }
  });
}

TEST(FsdpReproducible, RefusesAnotherNumberOfThreadsAndNoSync) {
  run_threads(1, [](const World& world) {
    torch::nn::Linear layer(2, 2);
    const auto sharded = fully_shard(layer, world, eight());
    expect_parts(message_of<ConfigError>([&] { const auto guard = sharded.no_sync(); }), {"leave no_sync() out"});
    at::set_num_threads(2);
    try {
      layer(at::ones({4, 2})).sum().backward();
      FAIL() << "two threads";
    } catch (const std::exception& error) {
      expect_parts(error.what(), {"set up for 1 threads", "now there are 2"});
    }
    at::set_num_threads(1);
    const auto plain = fully_shard(torch::nn::Linear(2, 2), world);
    expect_parts(message_of<ConfigError>([&] { plain.set_micro_batch(0); }),
                 {"set_micro_batch() is for FsdpOptions::reproducible(true)"});
  });
}

TEST(FsdpReproducible, RefusesGradientsThatComeInTwoParts) {
  run_threads(1, [](const World& world) {
    torch::nn::Linear layer(2, 2);
    const auto sharded = fully_shard(layer, world, eight());
    const at::Tensor inner = layer(at::ones({4, 2})).sum();
    const at::Tensor input = at::ones({4, 2}).requires_grad_(true) * 1;
    // When the layer's own gradients have come, a backward pass inside the backward pass brings more of them.
    input.register_hook([inner](const at::Tensor& /*gradient*/) { inner.backward(); });
    const at::Tensor outer = layer(input).sum();
    expect_parts(message_of<ConfigError>([&] { outer.backward(); }),
                 {"needs all gradients of a backward pass in one part, and weight", "tessera::recompute()", "rank 0"});
  });
}

}  // namespace
}  // namespace tessera::testing
