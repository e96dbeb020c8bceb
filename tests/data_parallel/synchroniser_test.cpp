#include <tessera/core/error.h>
#include <tessera/data_parallel/synchroniser.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "data_parallel/drill.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::asynchronous;
using testing::bounded;
using testing::Drill;
using testing::expect_same_everywhere;
using testing::kRate;
using testing::modes_of_common_updates;
using testing::text_of;

/// What synchronous training must give.
at::Tensor average_by_hand(int num_ranks, int num_steps, double momentum) {
  Drill drill(momentum);
  for (int step = 0; step < num_steps; ++step) {
    at::Tensor sum = at::zeros({5}, at::kDouble);
    for (int rank = 0; rank < num_ranks; ++rank) sum += drill.gradient(rank, step);
    drill.weights.mutable_grad() = sum / num_ranks;
    drill.optimizer.step();
  }
  return drill.weights.detach();
}

TEST(Synchroniser, WithBoundZeroEqualsAveragingByHand) {
  const at::Tensor expected = average_by_hand(3, 20, 0.9);
  for (const auto& options : {SynchroniserOptions(), bounded(0)}) {
    run_threads(3, [&](const World& world) {
      Drill drill(0.9);
      Synchroniser sync({drill.weights}, world, options);
      for (int step = 0; step < 20; ++step) {
        drill.step(sync, world.rank(), step);
        EXPECT_EQ(sync.version(), static_cast<std::uint64_t>(step + 1)) << "each step is one update";
      }
      sync.finish(drill.optimizer);
      EXPECT_TRUE(at::allclose(drill.weights, expected, 0, 1e-12)) << text_of(options);
      EXPECT_EQ(sync.staleness().counts, std::vector<std::uint64_t>{20}) << text_of(options);
    });
  }
}

TEST(Synchroniser, EndsWithTheSameBitsOnAllRanksThoughTheirStepsDiffer) {
  auto modes = modes_of_common_updates();
  modes.push_back(SynchroniserOptions().mode("local_sgd").period(4));
  for (const auto& options : modes) {
    run_threads(3, [&](const World& world) {
      Drill drill(0.9);
      Synchroniser sync({drill.weights}, world, options);
      for (int step = 0; step < 7 + 5 * world.rank(); ++step) drill.step(sync, world.rank(), step);
      sync.finish(drill.optimizer);
      EXPECT_GT(sync.version(), 0U);
      expect_same_everywhere(world, sync, drill.weights, text_of(options));
    });
  }
}

TEST(Synchroniser, AppliesEveryGradientExactlyOnce) {
  // Gradients that do not depend on the weights add up to the same in any order.
  const auto num_steps = [](int rank) { return 9 + 4 * rank; };
  at::Tensor expected = Drill().weights.detach().clone();
  for (int rank = 0; rank < 3; ++rank) {
    for (int step = 0; step < num_steps(rank); ++step) expected -= kRate * Drill::target(rank, step) / 3;
  }
  for (const auto& options : modes_of_common_updates()) {
    run_threads(3, [&](const World& world) {
      Drill drill;
      Synchroniser sync({drill.weights}, world, options);
      for (int step = 0; step < num_steps(world.rank()); ++step) {
        drill.weights.mutable_grad() = Drill::target(world.rank(), step);
        sync.step(drill.optimizer);
      }
      sync.finish(drill.optimizer);
      EXPECT_TRUE(at::allclose(drill.weights, expected, 0, 1e-12)) << text_of(options);
      EXPECT_EQ(sync.staleness().total(), static_cast<std::uint64_t>(num_steps(world.rank()))) << text_of(options);
    });
  }
}

TEST(Synchroniser, OfLocalSgdEqualsAveragingByHand) {
  const int period = 4;
  std::array<Drill, 3> hands = {Drill(0.9), Drill(0.9), Drill(0.9)};
  const auto average = [&] {
    at::Tensor sum = at::zeros({5}, at::kDouble);
    for (const auto& hand : hands) sum += hand.weights.detach();
    for (auto& hand : hands) hand.weights.data().copy_(sum / 3);
  };
  for (int step = 0; step < 10; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      auto& hand = hands.at(static_cast<std::size_t>(rank));
      hand.weights.mutable_grad() = hand.gradient(rank, step);
      hand.optimizer.step();
    }
    if ((step + 1) % period == 0) average();
  }
  average();
  run_threads(3, [&](const World& world) {
    Drill drill(0.9);
    Synchroniser sync({drill.weights}, world, SynchroniserOptions().mode("local_sgd").period(period));
    for (int step = 0; step < 10; ++step) drill.step(sync, world.rank(), step);
    EXPECT_EQ(sync.version(), 2U);
    sync.finish(drill.optimizer);
    EXPECT_EQ(sync.version(), 3U);
    EXPECT_EQ(sync.staleness().total(), 0U);
    EXPECT_TRUE(at::allclose(drill.weights, hands[0].weights, 0, 1e-12));
  });
}

TEST(Synchroniser, StartsFromTheWeightsOfRank0) {
  run_threads(3, [](const World& world) {
    at::Tensor trained = at::full({4}, 10.0 + world.rank()).requires_grad_(true);
    at::Tensor frozen = at::full({2, 2}, 20.0 + world.rank(), at::kDouble);
    const Synchroniser sync({trained, frozen}, world);
    EXPECT_TRUE(at::equal(trained.detach(), at::full({4}, 10.0)));
    EXPECT_TRUE(at::equal(frozen, at::full({2, 2}, 20.0, at::kDouble)));
  });
}

TEST(Synchroniser, TakesAnUndefinedGradientAsZeroAndTypesSideBySide) {
  run_threads(2, [](const World& world) {
    at::Tensor single = at::zeros({3}).requires_grad_(true);
    at::Tensor twice = at::zeros({2, 2}, at::kDouble).requires_grad_(true);
    torch::optim::SGD optimizer({single, twice}, torch::optim::SGDOptions(1));
    Synchroniser sync({single, twice, single}, world);  // a tied weight is listed twice
    if (world.rank() == 1) twice.mutable_grad() = at::ones({2, 2}, at::kDouble);
    if (world.rank() == 0) single.mutable_grad() = at::ones({3});
    sync.step(optimizer);
    sync.finish(optimizer);
    EXPECT_TRUE(at::equal(single.detach(), at::full({3}, -0.5)));
    EXPECT_TRUE(at::equal(twice.detach(), at::full({2, 2}, -0.5, at::kDouble)));
  });
}

TEST(Synchroniser, TellsEveryUpdateBeforeItIsApplied) {
  for (const auto& options : {bounded(0), bounded(2), asynchronous()}) {
    run_threads(2, [&](const World& world) {
      Drill drill;
      Synchroniser sync({drill.weights}, world, options);
      std::vector<std::uint64_t> reported;
      // A rate that follows the version keeps the ranks the same, which one of their own steps would not.
      sync.before_update([&](std::uint64_t update) {
        reported.push_back(update);
        static_cast<torch::optim::SGDOptions&>(drill.optimizer.param_groups()[0].options())
            .lr(kRate / (1.0 + static_cast<double>(update)));
      });
      for (int step = 0; step < 6 + world.rank(); ++step) drill.step(sync, world.rank(), step);
      sync.finish(drill.optimizer);
      std::vector<std::uint64_t> expected(sync.version());
      std::iota(expected.begin(), expected.end(), 0U);
      EXPECT_EQ(reported, expected) << text_of(options);
      expect_same_everywhere(world, sync, drill.weights, text_of(options));
    });
  }
}

TEST(Synchroniser, LeavesTheWorldToTheUser) {
  run_threads(3, [](const World& world) {
    Drill drill;
    Synchroniser sync({drill.weights}, world, asynchronous());
    for (int step = 0; step < 20; ++step) {
      drill.step(sync, world.rank(), step);
      at::Tensor sum = at::full({1000}, world.rank(), at::kLong);
      world.comm().all_reduce(sum);
      EXPECT_TRUE(at::equal(sum, at::full({1000}, 3, at::kLong)));
    }
    sync.finish(drill.optimizer);
  });
}

TEST(Synchroniser, OfOneRankIsTheOptimizerAlone) {
  const at::Tensor expected = average_by_hand(1, 10, 0);
  run_threads(1, [&](const World& world) {
    Drill drill;
    Synchroniser sync({drill.weights}, world);
    for (int step = 0; step < 10; ++step) drill.step(sync, 0, step);
    sync.finish(drill.optimizer);
    EXPECT_TRUE(at::equal(drill.weights.detach(), expected));
  });
}

TEST(Synchroniser, FinishesInAFakeWorld) {
  for (const auto* mode : {"synchronous", "asynchronous", "local_sgd"}) {
    const World world = fake_world(3, 1024);
    Drill drill;
    Synchroniser sync({drill.weights}, world, SynchroniserOptions().mode(mode));
    drill.step(sync, 3, 0);
    sync.finish(drill.optimizer);
    sync.finish(drill.optimizer);
    EXPECT_EQ(sync.version(), 1U) << mode;
    testing::expect_parts(testing::message_of<ConfigError>([&] { sync.step(drill.optimizer); }),
                          {"Synchroniser::step() was called after finish()"});
  }
}

}  // namespace
}  // namespace tessera
