#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "support/error_message.h"

namespace tessera {
namespace {

TEST(ThreadWorld, EveryRankRunsOnceAndKnowsItsPlace) {
  std::mutex mutex;
  std::multiset<int> ranks;
  run_threads(
      5,
      [&](const World& world) {
        EXPECT_EQ(world.size(), 5);
        EXPECT_EQ(world.launcher(), "threads");
        EXPECT_EQ(world.num_nodes(), 3);
        EXPECT_EQ(world.node(), world.rank() / 2);
        EXPECT_EQ(world.local_rank(), world.rank() % 2);
        EXPECT_EQ(world.local_size(), world.rank() == 4 ? 1 : 2);
        EXPECT_EQ(world.comm().backend(), "threads");
        const std::lock_guard lock(mutex);
        ranks.insert(world.rank());
      },
      WorldOptions(), 2);
  EXPECT_EQ(ranks, (std::multiset<int>{0, 1, 2, 3, 4}));
}

TEST(ThreadWorld, EveryTensorIsReachedWithoutACopy) {
  run_threads(2, [](const World& world) {
    EXPECT_TRUE(world.comm().is_zero_copy(at::ones({10})));
    EXPECT_FALSE(world.comm().is_zero_copy(at::ones({10, 2}).t()));
    const at::Tensor made = world.comm().empty({3, 4}, at::kHalf);
    EXPECT_EQ(made.sizes(), (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(made.scalar_type(), at::kHalf);
  });
}

TEST(ThreadWorld, SeveralWorldsLiveSideBySide) {
  run_threads(2, [](const World& outer) {
    run_threads(3, [&](const World& inner) {
      at::Tensor sum = at::ones({1}, at::kLong);
      inner.comm().all_reduce(sum);
      EXPECT_EQ(sum.item<int>(), 3);
    });
    at::Tensor sum = at::ones({1}, at::kLong);
    outer.comm().all_reduce(sum);
    EXPECT_EQ(sum.item<int>(), 2);
  });
}

TEST(WorldOptions, RefusesNamesThatThereAreNot) {
  using testing::expect_parts;
  using testing::message_of;
  expect_parts(message_of<ConfigError>([] { fake_world(0, 1, 1, WorldOptions().strategy("rnig")); }), {"rnig", "ring"});
  EXPECT_THROW(fake_world(0, 1, 1, WorldOptions().backend("smoke")), ConfigError);
  expect_parts(message_of<ConfigError>([] { parse_communication_strategy("star"); }), {"star", "hierarchical"});
  for (const char* name : {"allreduce", "ring", "tree", "hierarchical", "adaptive"}) {
    EXPECT_EQ(to_string(parse_communication_strategy(name)), name);
  }
}

}  // namespace
}  // namespace tessera
