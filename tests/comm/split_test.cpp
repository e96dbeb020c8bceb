#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>

#include "support/error_message.h"

namespace tessera {
namespace {

using testing::expect_parts;
using testing::message_of;

TEST(Split, NumbersTheMembersInTheGivenOrder) {
  run_threads(4, [](const World& world) {
    if (world.rank() == 1) return;
    const Communicator group = world.comm().split({3, 0, 2});
    const std::vector<int> members = {3, 0, 2};
    EXPECT_EQ(group.size(), 3);
    EXPECT_EQ(group.world_rank(), world.rank());
    EXPECT_EQ(members[static_cast<std::size_t>(group.rank())], world.rank());
    for (int r = 0; r < 3; ++r) EXPECT_EQ(group.world_rank_of(r), members[static_cast<std::size_t>(r)]);
    const at::Tensor order = group.all_gather(at::full({1}, world.rank(), at::kInt));
    EXPECT_TRUE(at::equal(order, at::tensor({3, 0, 2}, at::kInt)));
  });
}

TEST(Split, OfASplitCountsRanksOfTheParent) {
  run_threads(6, [](const World& world) {
    const Communicator odd = world.comm().split_by([](int rank) { return rank % 2; }, "parity");
    if (odd.rank() == 0) return;
    const Communicator rest = odd.split({2, 1});
    EXPECT_EQ(rest.world_rank_of(0), world.rank() % 2 + 4);
    at::Tensor sum = at::full({1}, world.rank(), at::kLong);
    rest.all_reduce(sum);
    EXPECT_EQ(sum.item<int>(), world.rank() % 2 == 0 ? 6 : 8);
  });
}

TEST(Split, ByColorJoinsTheRanksOfOneColor) {
  run_threads(7, [](const World& world) {
    const auto color = [](int rank) { return rank * rank % 7; };
    const Communicator group = world.comm().split_by(color);
    std::vector<int> expected;
    for (int r = 0; r < 7; ++r) {
      if (color(r) == color(world.rank())) expected.push_back(r);
    }
    EXPECT_EQ(group.size(), static_cast<int>(expected.size()));
    at::Tensor sum = at::full({1}, world.rank(), at::kLong);
    group.all_reduce(sum);
    EXPECT_EQ(sum.item<int>(), std::accumulate(expected.begin(), expected.end(), 0));
  });
}

TEST(Split, NamesAreEqualOnTheMembersAndDifferBetweenGroups) {
  std::mutex mutex;
  std::map<std::vector<int>, std::set<std::string>> names_of;  // by members and how often
  run_threads(4, [&](const World& world) {
    const auto note = [&](std::vector<int> key, const Communicator& group) {
      const std::lock_guard lock(mutex);
      names_of[std::move(key)].insert(group.name());
    };
    const int pair = world.rank() / 2;
    const std::vector<int> ranks = {2 * pair, 2 * pair + 1};
    note({pair, 1}, world.comm().split(ranks));
    note({pair, 2}, world.comm().split(ranks));
    note({pair, 3}, world.comm().split(ranks, "dp"));
    note({pair, 4}, world.comm().split(ranks, "dp"));
    note({pair, 5}, world.comm().split({ranks[1], ranks[0]}));
    note({pair, 6}, world.comm().split(ranks).split({0, 1}));
  });
  std::set<std::string> all;
  for (const auto& [key, names] : names_of) {
    EXPECT_EQ(names.size(), 1U) << "members disagree, first: " << *names.begin();
    all.insert(names.begin(), names.end());
  }
  EXPECT_EQ(all.size(), names_of.size()) << "two groups share a name";
  for (const auto& name : all) EXPECT_TRUE(name.starts_with("world/")) << name;
}

TEST(Split, NamesOfLongListsStayShortAndDiffer) {
  const World world = fake_world(0, 4096);
  std::vector<int> all(4096);
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> swapped = all;
  std::swap(swapped[4000], swapped[4001]);
  const auto first = world.comm().split(all).name();
  const auto second = world.comm().split(swapped).name();
  EXPECT_LT(first.size(), 120U);
  EXPECT_NE(first, second);
}

TEST(Split, SubgroupsWorkAtTheSameTime) {
  run_threads(8, [](const World& world) {
    const Communicator rows = world.comm().split_by([](int rank) { return rank / 4; }, "rows");
    const Communicator columns = world.comm().split_by([](int rank) { return rank % 4; }, "columns");
    at::Tensor row_sum = at::full({100}, world.rank(), at::kLong);
    at::Tensor column_sum = row_sum.clone();
    Work row = rows.all_reduce_async(row_sum);
    Work column = columns.all_reduce_async(column_sum);
    column.wait();
    row.wait();
    EXPECT_EQ(row_sum[99].item<int>(), world.rank() < 4 ? 6 : 22);
    EXPECT_EQ(column_sum[99].item<int>(), 2 * (world.rank() % 4) + 4);
  });
}

TEST(Split, TakesOverTimeoutAndStrategy) {
  const World world = fake_world(0, 4);
  const auto parent = world.comm().with_timeout(std::chrono::seconds(7)).with_strategy(CommunicationStrategy::kTree);
  const auto child = parent.split({0, 1});
  EXPECT_EQ(child.timeout(), std::chrono::seconds(7));
  EXPECT_EQ(child.strategy(), CommunicationStrategy::kTree);
  EXPECT_EQ(world.comm().strategy(), CommunicationStrategy::kBackend) << "the original is as it was";
}

TEST(Split, RefusesWhatIsNotAGroupOfThisRank) {
  const World world = fake_world(2, 4);
  expect_parts(message_of<ConfigError>([&] { world.comm().split({0, 1}); }), {"rank 2", "not a member"});
  EXPECT_THROW(world.comm().split({}), ConfigError);
  EXPECT_THROW(world.comm().split({2, 2}), ConfigError);
  expect_parts(message_of<ConfigError>([&] { world.comm().split({2, 4}); }), {"0 to 3", "4"});
  EXPECT_THROW(world.comm().split({2, -1}), ConfigError);
}

TEST(Split, ConnectsNothingBeforeItsFirstUse) {
  const World world = fake_world(2, 4);
  const auto group = world.comm().split({2, 3});
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(fake_traffic(world).num_groups, 0U);
  group.barrier();
  EXPECT_EQ(fake_traffic(world).num_groups, 1U) << "the parent was not needed";
}

TEST(Split, OutlivesTheWorld) {
  std::optional<Communicator> group;
  {
    const World world = fake_world(0, 2);
    group = world.comm().split({0, 1});
  }
  group->barrier();
}

}  // namespace
}  // namespace tessera
