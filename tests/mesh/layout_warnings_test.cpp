#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Names = std::vector<std::string>;

TEST(LayoutWarnings, AreAbsentWhenTheChattiestAxisLiesInsideNodes) {
  EXPECT_TRUE(layout_warnings(AxisLayout({{"dp", 4}, {"tp", 8}}), Topology::blocks(32, 8)).empty());
}

TEST(LayoutWarnings, AreAbsentOnOneNode) {
  EXPECT_TRUE(layout_warnings(AxisLayout({{"tp", 4}, {"dp", 8}}), Topology::blocks(32, 32)).empty());
}

TEST(LayoutWarnings, NameTheBetterOrder) {
  const auto warnings = layout_warnings(AxisLayout({{"tp", 4}, {"dp", 8}}), Topology::blocks(32, 8));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("axis tp crosses nodes while dp"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("{dp, tp}"), std::string::npos) << warnings[0];
}

TEST(LayoutWarnings, NameEachAxisThatCrosses) {
  const AxisLayout layout({{"tp", 2}, {"dp", 2}, {"pp", 8}});
  const auto warnings = layout_warnings(layout, Topology::blocks(32, 8));
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_NE(warnings[0].find("axis tp crosses nodes while pp"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[1].find("axis dp crosses nodes while pp"), std::string::npos) << warnings[1];
  EXPECT_NE(warnings[0].find("{pp, dp, tp}"), std::string::npos) << warnings[0];
}

TEST(LayoutWarnings, FollowTheNamedOrder) {
  const std::vector<AxisSpec> axes{{"tp", 4}, {"dp", 8}};
  EXPECT_TRUE(layout_warnings(AxisLayout(axes, {"dp", "tp"}), Topology::blocks(32, 8)).empty());
  EXPECT_EQ(layout_warnings(AxisLayout(axes, {"tp", "dp"}), Topology::blocks(32, 8)).size(), 1U);
}

TEST(LayoutWarnings, KnowThatRoundRobinPlacementTurnsTheOrderAround) {
  const auto topology = Topology::cyclic(32, 4);
  EXPECT_TRUE(layout_warnings(AxisLayout({{"tp", 8}, {"dp", 4}}), topology).empty());
  const auto warnings = layout_warnings(AxisLayout({{"dp", 4}, {"tp", 8}}), topology);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("{tp, dp}"), std::string::npos) << warnings[0];
}

TEST(LayoutWarnings, TakeNodesFromATable) {
  const auto scattered = Topology::table({0, 1, 0, 1});
  EXPECT_EQ(layout_warnings(AxisLayout({{"dp", 2}, {"tp", 2}}), scattered).size(), 1U);
  EXPECT_TRUE(layout_warnings(AxisLayout({{"tp", 2}, {"dp", 2}}), scattered).empty());
}

TEST(LayoutWarnings, AreAbsentWhenNothingCouldBeBetter) {
  // tp cannot fit a node; nothing else is inside one either.
  EXPECT_TRUE(layout_warnings(AxisLayout({{"dp", 2}, {"tp", 16}}), Topology::blocks(32, 8)).empty());
  EXPECT_TRUE(layout_warnings(AxisLayout({{"tp", 32}, {"dp", 1}}), Topology::blocks(32, 8)).empty());
}

TEST(LayoutWarnings, BelieveTheCallerAboutChattiness) {
  const AxisLayout layout({{"tp", 4}, {"dp", 8}});
  EXPECT_TRUE(layout_warnings(layout, Topology::blocks(32, 8), {"dp", "tp"}).empty());
  EXPECT_THROW(layout_warnings(layout, Topology::blocks(32, 8), {"dp"}), ConfigError);
}

TEST(DefaultChattiness, RanksKnownNames) {
  const AxisLayout layout({{"pp", 1}, {"dp", 1}, {"ep", 1}, {"cp", 1}, {"tp", 1}});
  EXPECT_EQ(default_chattiness(layout), (Names{"tp", "cp", "ep", "dp", "pp"}));
}

TEST(DefaultChattiness, PutsAnUnknownAxisJustAboveTheOneDeclaredBefore) {
  EXPECT_EQ(default_chattiness(AxisLayout({{"x", 1}, {"y", 1}})), (Names{"y", "x"}));
  EXPECT_EQ(default_chattiness(AxisLayout({{"tp", 1}, {"dp", 1}, {"x", 1}})), (Names{"tp", "x", "dp"}));
  EXPECT_EQ(default_chattiness(AxisLayout({{"x", 1}, {"pp", 1}})), (Names{"pp", "x"}));
}

}  // namespace
}  // namespace tessera
