#include <tessera/core/error.h>
#include <tessera/mesh/device_mesh.h>

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Ints = std::vector<int>;

std::string refusal(const std::vector<AxisSpec>& axes, const DeviceMeshOptions& options = {}) {
  try {
    const DeviceMesh mesh(fake_world(0, 8), axes, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceMesh, KnowsCoordinatesAndRanks) {
  const DeviceMesh mesh(fake_world(5, 8), {{"dp", 4}, {"tp", 2}});
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_EQ(mesh.rank(), 5);
  EXPECT_EQ(mesh.coordinates(), (Ints{2, 1}));
  EXPECT_EQ(mesh.coordinates(6), (Ints{3, 0}));
  EXPECT_EQ(mesh.rank_at({3, 0}), 6);
  EXPECT_EQ(mesh["dp"].size(), 4);
  EXPECT_EQ(mesh["dp"].coordinate(), 2);
  EXPECT_EQ(mesh["dp"].world_ranks(), (Ints{1, 3, 5, 7}));
  EXPECT_EQ(mesh["dp"].id(), "dp.1");
  EXPECT_EQ(mesh["tp"].id(), "tp.2");
}

TEST(DeviceMesh, FollowsAGivenOrder) {
  const DeviceMesh mesh(fake_world(5, 8), {{"dp", 4}, {"tp", 2}}, DeviceMeshOptions().order({"tp", "dp"}));
  EXPECT_EQ(mesh.coordinates(), (Ints{1, 1}));
  EXPECT_EQ(mesh["dp"].world_ranks(), (Ints{4, 5, 6, 7}));
}

TEST(DeviceMesh, SubMeshIsThisRanksSlice) {
  const DeviceMesh mesh(fake_world(11, 12), {{"dp", 2}, {"cp", 3}, {"tp", 2}});
  const auto sub = mesh.sub({"dp", "tp"});
  EXPECT_EQ(sub.axes(), (std::vector<AxisSpec>{{"dp", 2}, {"tp", 2}}));
  EXPECT_EQ(sub.world_ranks(), (Ints{4, 5, 10, 11}));
  EXPECT_EQ(sub.rank(), 3);
  EXPECT_EQ(sub.coordinates(), (Ints{1, 1}));
  EXPECT_EQ(sub.rank_at({1, 0}), 10);
  EXPECT_EQ(sub["dp"].id(), mesh["dp"].id());
  EXPECT_EQ(sub.flatten().name(), "dp+tp");
  EXPECT_EQ(sub.flatten().size(), 4);
  EXPECT_EQ(sub.flatten().coordinate(), 3);
  EXPECT_EQ(sub.sub({"tp"}).world_ranks(), (Ints{10, 11}));
  EXPECT_THROW(sub["cp"], ConfigError);
  EXPECT_THROW(sub.coordinates(0), ConfigError);
  EXPECT_THROW(mesh.sub({"dp", "dp"}), ConfigError);
}

TEST(DeviceMesh, SubMeshListsCoordinatesAsTheAxesWereNamed) {
  const DeviceMesh mesh(fake_world(10, 12), {{"dp", 2}, {"cp", 3}, {"tp", 2}});
  const auto sub = mesh.sub({"tp", "dp"});
  EXPECT_EQ(sub.coordinates(), (Ints{0, 1}));
  EXPECT_EQ(sub.world_ranks(), mesh.sub({"dp", "tp"}).world_ranks());
}

TEST(DeviceMesh, DeviceIsTheLocalRankOfTheRankThere) {
  const DeviceMesh mesh(fake_world(0, 12, 4), {{"dp", 3}, {"tp", 4}});
  EXPECT_EQ(mesh.device_at({0, 3}), 3);
  EXPECT_EQ(mesh.device_at({2, 1}), 1);
  const DeviceMesh uneven(fake_world(0, 12, 8), {{"dp", 3}, {"tp", 4}});
  EXPECT_EQ(uneven.device_at({1, 1}), 5);
  EXPECT_EQ(uneven.device_at({2, 1}), 1);
}

TEST(DeviceMesh, HasFactoriesForOneToThreeAxes) {
  const auto world = fake_world(7, 8);
  EXPECT_EQ(DeviceMesh::linear(world).axes(), (std::vector<AxisSpec>{{"dp", 8}}));
  EXPECT_EQ(DeviceMesh::linear(world, "tp")["tp"].coordinate(), 7);
  EXPECT_EQ(DeviceMesh::two_d(world, 4, 2).coordinates(), (Ints{3, 1}));
  EXPECT_EQ(DeviceMesh::three_d(world, {.dp = 2, .tp = 2, .pp = 2}).coordinates(), (Ints{1, 1, 1}));
}

TEST(DeviceMesh, RefusesAWrongProductWithTheNearestSizes) {
  const auto message = refusal({{"dp", 4}, {"tp", 3}});
  EXPECT_NE(message.find("use {dp: 4, tp: 2}, or start 12 ranks"), std::string::npos) << message;
}

TEST(DeviceMesh, RefusesWithEveryFaultAtOnce) {
  const auto message = refusal({{"dp", 4}, {"tp", 3}}, DeviceMeshOptions()
                                                           .order({"dp"})
                                                           .chattiness({"tp"})
                                                           .strategy("telepathy")
                                                           .timeout(std::chrono::milliseconds(-1)));
  for (const char* fault : {"need 12 ranks", "the order is {dp}", "the chattiness is {tp}", "telepathy", "-1 ms"}) {
    EXPECT_NE(message.find(fault), std::string::npos) << fault << "\nis missing in\n" << message;
  }
  EXPECT_NE(refusal({}), "");
}

TEST(DeviceMesh, WarnsOfASlowLayoutOnRankZeroOnly) {
  for (int rank : {0, 1}) {
    std::vector<std::string> lines;
    const auto options = DeviceMeshOptions().log_sink([&](std::string_view line) { lines.emplace_back(line); });
    const DeviceMesh mesh(fake_world(rank, 16, 4), {{"tp", 4}, {"dp", 4}}, options);
    EXPECT_EQ(mesh.layout_warnings().size(), 1U);
    EXPECT_EQ(mesh.sub({"dp"}).layout_warnings().size(), 1U);
    EXPECT_EQ(lines.size(), rank == 0 ? 1U : 0U);
  }
  const DeviceMesh given(fake_world(0, 16, 4), {{"tp", 4}, {"dp", 4}}, DeviceMeshOptions().chattiness({"dp", "tp"}));
  EXPECT_TRUE(given.layout_warnings().empty());
}

TEST(DeviceMesh, GroupsFollowStrategyAndTimeoutOfTheOptions) {
  const auto world = fake_world(0, 8);
  const DeviceMesh plain(world, {{"dp", 8}});
  EXPECT_EQ(plain.comm().timeout(), world.comm().timeout());
  EXPECT_EQ(plain.comm().strategy(), world.comm().strategy());
  const DeviceMesh other(world, {{"dp", 8}},
                         DeviceMeshOptions().strategy("tree").timeout(std::chrono::milliseconds(1234)));
  EXPECT_EQ(other.comm().timeout(), std::chrono::milliseconds(1234));
  EXPECT_EQ(other.comm().strategy(), CommunicationStrategy::kTree);
}

TEST(DeviceMeshOptions, AreReadFromText) {
  const auto& fields = DeviceMeshOptions::fields();
  DeviceMeshOptions options;
  fields.set_text(options, "order", "tp,dp");
  fields.set_text(options, "timeout", "2s");
  fields.set_text(options, "strategy", "ring");
  EXPECT_EQ(options.order(), (std::vector<std::string>{"tp", "dp"}));
  EXPECT_EQ(options.timeout(), std::chrono::seconds(2));
  EXPECT_EQ(options.strategy(), "ring");
}

}  // namespace
}  // namespace tessera
