// How far behind a gradient may be, and how far it gets.
#include <tessera/data_parallel/synchroniser.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "data_parallel/drill.h"
#include "support/at_once.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using testing::asynchronous;
using testing::at_once;
using testing::bounded;
using testing::Drill;
using testing::expect_same_everywhere;
using testing::text_of;

/// How long rank `rank` computes in its step `step`.
using Pace = std::function<milliseconds(int rank, int step)>;

void expect_bound_kept(std::int64_t bound, int num_steps, const Pace& pace) {
  run_threads(3, [&](const World& world) {
    Drill drill;
    Synchroniser sync({drill.weights}, world, bounded(bound));
    for (int step = 0; step < num_steps; ++step) {
      std::this_thread::sleep_for(pace(world.rank(), step));
      drill.step(sync, world.rank(), step);
    }
    sync.finish(drill.optimizer);
    EXPECT_LE(sync.staleness().largest(), static_cast<std::uint64_t>(bound)) << "rank " << world.rank();
    EXPECT_EQ(sync.staleness().total(), static_cast<std::uint64_t>(num_steps));
    expect_same_everywhere(world, sync, drill.weights, "bound " + std::to_string(bound));
  });
}

TEST(Staleness, StaysWithinTheBoundWithASlowRank) {
  at_once(std::vector<int>{0, 1, 4}, [](int bound) {
    expect_bound_kept(bound, 40, [](int rank, int) { return milliseconds(rank == 1 ? 6 : 2); });
  });
}

TEST(Staleness, StaysWithinTheBoundAtRandomPaces) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    at_once(std::vector<int>{0, 1, 4}, [&](int bound) {
      expect_bound_kept(bound, 30, [&](int rank, int step) {
        std::minstd_rand random(seed * 1000003U + static_cast<unsigned>(rank) * 1009U + static_cast<unsigned>(step));
        random.discard(3);
        return milliseconds(std::uniform_int_distribution<int>(0, 7)(random));
      });
    });
  }
}

/// Rank 0 finishes its gradient only when rank 1 has applied `lead` more updates than rank 0 had when it began; what
/// staleness rank 0 then measures, step after step, does not hang on time.
void run_with_lead(const SynchroniserOptions& options, std::uint64_t lead, int num_steps_of_rank_0,
                   const std::function<void(const StalenessHistogram&)>& check) {
  std::atomic<std::uint64_t> version_of_rank_1 = 0;
  std::atomic<bool> rank_0_is_done = false;
  run_threads(2, [&](const World& world) {
    Drill drill;
    Synchroniser sync({drill.weights}, world, options);
    if (world.rank() == 0) {
      for (int step = 0; step < num_steps_of_rank_0; ++step) {
        while (version_of_rank_1.load() < sync.version() + lead) std::this_thread::sleep_for(milliseconds(1));
        drill.step(sync, 0, step);
      }
      rank_0_is_done = true;
    } else {
      for (int step = 0; !rank_0_is_done; ++step) {
        drill.step(sync, 1, step);
        version_of_rank_1 = sync.version();
      }
    }
    sync.finish(drill.optimizer);
    if (world.rank() == 0) check(sync.staleness());
    expect_same_everywhere(world, sync, drill.weights, text_of(options));
  });
}

TEST(Staleness, ReachesTheBoundWhenARankIsThatSlow) {
  for (const std::uint64_t bound : {1U, 4U}) {
    run_with_lead(bounded(static_cast<std::int64_t>(bound)), bound, 5, [&](const StalenessHistogram& staleness) {
      std::vector<std::uint64_t> expected(bound + 1);
      expected[bound] = 5;
      EXPECT_EQ(staleness.counts, expected) << "bound " << bound;
      EXPECT_EQ(staleness.mean(), static_cast<double>(bound));
    });
  }
}

/// As one of a large model.
struct SlowSgd : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    std::this_thread::sleep_for(milliseconds(10));
    return torch::optim::SGD::step(std::move(closure));
  }
};

// Once it has applied them, others may go on while it computes: it must notice, though nobody offers anything.
TEST(Staleness, LetsOthersGoOnAfterUpdatesThatTookLongToApply) {
  std::atomic<std::uint64_t> version_of_rank_1 = 0;
  std::atomic<bool> rank_0_is_done = false;
  run_threads(2, [&](const World& world) {
    Drill drill;
    SlowSgd slow({drill.weights}, torch::optim::SGDOptions(testing::kRate));
    Synchroniser sync({drill.weights}, world, bounded(1));
    if (world.rank() == 0) {
      for (int step = 0; step < 5; ++step) {
        drill.weights.mutable_grad() = drill.gradient(0, step);
        sync.step(slow);
        while (version_of_rank_1.load() < sync.version() + 1) std::this_thread::sleep_for(milliseconds(1));
      }
      rank_0_is_done = true;
    } else {
      for (int step = 0; !rank_0_is_done; ++step) {
        drill.step(sync, 1, step);
        version_of_rank_1 = sync.version();
      }
    }
    sync.finish(drill.optimizer);
    expect_same_everywhere(world, sync, drill.weights, "slow to apply");
  });
}

TEST(Staleness, HasNoBoundWhenAsynchronous) {
  run_with_lead(asynchronous(), 12, 4, [](const StalenessHistogram& staleness) {
    EXPECT_EQ(staleness.total(), 4U);
    EXPECT_GE(staleness.largest(), 12U);
    EXPECT_GE(staleness.mean(), 12.0);
  });
}

TEST(Staleness, OfAsynchronousRanksEndsWhereTheQueueIsFull) {
  std::atomic<std::uint64_t> version_of_rank_1 = 0;
  std::atomic<bool> rank_0_is_done = false;
  run_threads(2, [&](const World& world) {
    Drill drill;
    Synchroniser sync({drill.weights}, world, asynchronous().max_queued(3));
    if (world.rank() == 0) {
      while (version_of_rank_1.load() < 3) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(50));  // a fourth update would come within a millisecond or two
      EXPECT_EQ(version_of_rank_1.load(), 3U) << "three updates wait on rank 0, a fourth has no room";
      drill.step(sync, 0, 0);
      EXPECT_GE(sync.version(), 3U);
      rank_0_is_done = true;
    } else {
      for (int step = 0; !rank_0_is_done; ++step) {
        drill.step(sync, 1, step);
        version_of_rank_1 = sync.version();
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    sync.finish(drill.optimizer);
    expect_same_everywhere(world, sync, drill.weights, "asynchronous");
  });
}

TEST(Staleness, IsCountedInAHistogram) {
  StalenessHistogram histogram;
  EXPECT_EQ(histogram.largest(), 0U);
  EXPECT_EQ(histogram.mean(), 0.0);
  for (const std::uint64_t staleness : {0U, 3U, 3U}) histogram.add(staleness);
  EXPECT_EQ(histogram.counts, (std::vector<std::uint64_t>{1, 0, 0, 2}));
  EXPECT_EQ(histogram.total(), 3U);
  EXPECT_EQ(histogram.largest(), 3U);
  EXPECT_EQ(histogram.mean(), 2.0);
}

}  // namespace
}  // namespace tessera
