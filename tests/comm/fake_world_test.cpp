#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>

namespace tessera {
namespace {

TEST(FakeWorld, KnowsItsPlace) {
  const World world = fake_world(13, 16, 4);
  EXPECT_EQ(world.rank(), 13);
  EXPECT_EQ(world.size(), 16);
  EXPECT_EQ(world.local_rank(), 1);
  EXPECT_EQ(world.local_size(), 4);
  EXPECT_EQ(world.node(), 3);
  EXPECT_EQ(world.num_nodes(), 4);
  EXPECT_EQ(world.launcher(), "fake");
  EXPECT_EQ(world.comm().backend(), "fake");
}

TEST(FakeWorld, TensorsKeepTheirValues) {
  for (const auto strategy : {CommunicationStrategy::kBackend, CommunicationStrategy::kRing,
                              CommunicationStrategy::kTree, CommunicationStrategy::kHierarchical}) {
    const World world = fake_world(1, 8, 4);
    const auto comm = world.comm().with_strategy(strategy);
    const at::Tensor values = at::arange(16, at::kFloat);
    at::Tensor tensor = values.clone();
    comm.broadcast(tensor, 0);
    comm.recv(tensor, 0);
    EXPECT_TRUE(at::equal(tensor, values)) << to_string(strategy);
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
      comm.all_reduce(tensor, op);
      comm.reduce(tensor, 1, op);
      EXPECT_TRUE(at::equal(tensor, values)) << to_string(strategy) << " " << to_string(op);
    }
  }
}

TEST(FakeWorld, ResultsHaveTheShapesOfRealOnes) {
  const World world = fake_world(1, 8);
  const Communicator& comm = world.comm();
  EXPECT_EQ(comm.all_gather(at::zeros({2, 3}), 1).sizes(), (std::vector<std::int64_t>{2, 24}));
  EXPECT_EQ(comm.reduce_scatter(at::zeros({16, 3})).sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(comm.scatter(at::zeros({8}), 0).sizes(), (std::vector<std::int64_t>{1}));
  EXPECT_FALSE(comm.gather(at::zeros({8}), 0).defined());
  EXPECT_EQ(comm.gather(at::zeros({8}), 1).sizes(), (std::vector<std::int64_t>{64}));
}

/// Never memory that nobody has written.
TEST(FakeWorld, ResultsAreOfThisRankAlone) {
  const World world = fake_world(1, 4);
  const Communicator& comm = world.comm();
  const at::Tensor mine = at::arange(1, 5, at::kFloat);
  const auto alone = at::zeros({4, 4}).select_scatter(mine, 0, 1).flatten();
  EXPECT_TRUE(at::equal(comm.all_gather(mine), alone));
  EXPECT_TRUE(at::equal(comm.gather(mine, 1), alone));
  EXPECT_TRUE(at::equal(comm.reduce_scatter(mine), at::full({1}, 2.F)));
  EXPECT_TRUE(at::equal(comm.scatter(mine, 1), at::full({1}, 2.F)));
  EXPECT_TRUE(at::equal(comm.scatter(mine, 0), at::zeros({1})));
  EXPECT_TRUE(at::equal(comm.all_to_all(mine), at::tensor({0.F, 2.F, 0.F, 0.F})));
  EXPECT_TRUE(at::equal(comm.recv({2}, at::kFloat, 0), at::zeros({2})));
}

TEST(FakeWorld, CountsCallsMessagesAndGroups) {
  const World world = fake_world(2, 8);
  EXPECT_EQ(fake_traffic(world).num_groups, 0U);
  world.comm().send(at::zeros({10}), 3);
  EXPECT_EQ(fake_traffic(world).num_calls, 1U);
  EXPECT_EQ(fake_traffic(world).num_messages, 1U);
  EXPECT_EQ(fake_traffic(world).num_bytes, 40U);
  EXPECT_EQ(fake_traffic(world).num_groups, 1U);
  world.comm().with_strategy(CommunicationStrategy::kRing).barrier();
  world.comm().with_strategy(CommunicationStrategy::kTree).barrier();
  EXPECT_EQ(fake_traffic(world).num_groups, 1U) << "strategies share the group's connection";
  world.comm().split({2, 3}).barrier();
  world.comm().split({2, 3}).barrier();
  EXPECT_EQ(fake_traffic(world).num_groups, 3U);
}

TEST(FakeWorld, HierarchyCrossesTheNetworkOnceANode) {
  // Rank 0 leads its node: it talks to 3 ranks here and 3 other nodes. Rank 1 only talks to its node.
  const auto bytes_of_rank = [](int rank) {
    const World world = fake_world(rank, 16, 4);
    world.comm().with_strategy(CommunicationStrategy::kHierarchical).all_reduce(at::zeros({1200}));
    const auto traffic = fake_traffic(world);
    EXPECT_EQ(traffic.num_groups, rank % 4 == 0 ? 2U : 1U);
    return traffic.num_bytes;
  };
  EXPECT_EQ(bytes_of_rank(4), bytes_of_rank(0));
  EXPECT_LE(bytes_of_rank(1), 2U * 4800);
  EXPECT_GT(bytes_of_rank(0), bytes_of_rank(1));
}

TEST(FakeWorld, OfManyRanksIsCheap) {
  const auto start = std::chrono::steady_clock::now();
  const World world = fake_world(9999, 16384, 8);
  world.comm().all_reduce(at::zeros({100'000}));
  const auto node = world.comm().split_by([](int rank) { return rank / 8; }, "node");
  node.all_reduce(at::zeros({100}));
  EXPECT_EQ(fake_traffic(world).num_groups, 2U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(FakeWorld, RefusesRanksOutsideOfIt) {
  EXPECT_THROW(fake_world(4, 4), ConfigError);
  EXPECT_THROW(fake_world(-1, 4), ConfigError);
  EXPECT_THROW(fake_world(0, 0), ConfigError);
}

TEST(FakeWorld, AloneCountsItsTraffic) {
  run_threads(1, [](const World& world) { EXPECT_THROW(fake_traffic(world), ConfigError); });
}

}  // namespace
}  // namespace tessera
