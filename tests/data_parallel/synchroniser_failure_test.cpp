// What the ranks of a Synchroniser hear when one of them fails.
#include <tessera/core/error.h>
#include <tessera/data_parallel/synchroniser.h>

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>

#include "data_parallel/drill.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using testing::bounded;
using testing::Drill;
using testing::expect_parts;
using testing::message_of;
using testing::modes_of_common_updates;
using testing::text_of;

struct Deliberate : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(SynchroniserFailure, OfARankIsReportedToTheOthers) {
  for (const auto& options : modes_of_common_updates()) {
    const auto start = std::chrono::steady_clock::now();
    std::atomic<int> num_notified = 0;
    const auto message = message_of<Deliberate>([&] {
      run_threads(3, [&](const World& world) {
        Drill drill;
        Synchroniser sync({drill.weights}, world, options);
        const auto train = [&] {
          for (int step = 0; step < 1'000'000; ++step) {
            if (world.rank() == 1 && step == 5) throw Deliberate("rank 1 does not feel like it");
            drill.step(sync, world.rank(), step);
          }
        };
        if (world.rank() == 1) {
          train();
        } else {
          expect_parts(message_of<CommError>(train), {"rank 1 left the training", "finish()"});
          EXPECT_THROW(sync.finish(drill.optimizer), CommError);
          ++num_notified;
        }
      });
    });
    EXPECT_EQ(message, "rank 1 does not feel like it") << text_of(options);
    EXPECT_EQ(num_notified.load(), 2) << text_of(options);
    // It may take 30 s.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15)) << text_of(options);
  }
}

TEST(SynchroniserFailure, OfARankIsReportedToThoseThatFinish) {
  std::atomic<bool> notified = false;
  EXPECT_THROW(run_threads(2,
                           [&](const World& world) {
                             Drill drill;
                             Synchroniser sync({drill.weights}, world, bounded(4));
                             drill.step(sync, world.rank(), 0);
                             if (world.rank() == 1) throw Deliberate("no");
                             EXPECT_THROW(sync.finish(drill.optimizer), CommError);
                             notified = true;
                           }),
               Deliberate);
  EXPECT_TRUE(notified.load());
}

TEST(SynchroniserFailure, OfARankThatIsSilentComesAtTheTimeout) {
  std::latch notified(2);
  run_threads(
      3,
      [&](const World& world) {
        Drill drill;
        Synchroniser sync({drill.weights}, world, bounded(1));
        const auto train = [&] {
          for (int step = 0; step < 1'000'000; ++step) {
            if (world.rank() == 2 && step == 3) notified.wait();  // computes for ever
            drill.step(sync, world.rank(), step);
          }
        };
        const auto message = message_of<CommError>(train);
        if (world.rank() != 2) {
          expect_parts(message, {"all_reduce", "staleness"});
          notified.count_down();
        }
      },
      WorldOptions().timeout(milliseconds(1000)));
}

TEST(SynchroniserFailure, OfAnOptimizerComesOutOfTheStep) {
  run_threads(2, [&](const World& world) {
    Drill drill;
    Synchroniser sync({drill.weights}, world);
    sync.before_update([](std::uint64_t update) {
      if (update == 2) throw Deliberate("not this one");
    });
    const auto train = [&] {
      for (int step = 0; step < 4; ++step) drill.step(sync, world.rank(), step);
    };
    EXPECT_EQ(message_of<Deliberate>(train), "not this one");
    expect_parts(message_of<ConfigError>(train), {"an update was lost to an error before"});
  });
}

TEST(SynchroniserFailure, IsNoneWhenAllLeaveWithoutFinish) {
  for (const auto& options : modes_of_common_updates()) {
    run_threads(3, [&](const World& world) {
      Drill drill;
      Synchroniser sync({drill.weights}, world, options);
      for (int step = 0; step < 3; ++step) drill.step(sync, world.rank(), step);
      world.comm().barrier();  // nobody is in step() any more
    });
  }
}

}  // namespace
}  // namespace tessera
