#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>
#include "factorisations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tessera {
namespace {

using testing::all_orders;
using testing::for_each_factorisation;

/// Every factorisation of every world size up to 64 in every order of the axes.
void for_each_mapping(const std::function<void(const RankMapping&)>& visit) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for_each_factorisation(ranks, 3, [&](const std::vector<int>& sizes) {
      for (const auto& order : all_orders({"dp", "tp", "pp"})) {
        visit(RankMapping({sizes[0], sizes[1], sizes[2]}, Topology::blocks(ranks, 8), order));
      }
    });
  }
}

ThreeDCoordinates without(ThreeDCoordinates coordinates, const std::string& axis) {
  (axis == "dp" ? coordinates.dp : axis == "tp" ? coordinates.tp : coordinates.pp) = 0;
  return coordinates;
}

int along(const ThreeDCoordinates& coordinates, const std::string& axis) {
  return axis == "dp" ? coordinates.dp : axis == "tp" ? coordinates.tp : coordinates.pp;
}

TEST(RankMapping, IsABijectionInEveryLayout) {
  for_each_mapping([](const RankMapping& mapping) {
    const auto sizes = mapping.sizes();
    std::set<int> seen;
    for (int dp = 0; dp < sizes.dp; ++dp) {
      for (int tp = 0; tp < sizes.tp; ++tp) {
        for (int pp = 0; pp < sizes.pp; ++pp) {
          const ThreeDCoordinates coordinates{dp, tp, pp};
          const int rank = mapping.rank_at(coordinates);
          ASSERT_TRUE(seen.insert(rank).second);
          ASSERT_EQ(mapping.coordinates(rank), coordinates);
        }
      }
    }
    ASSERT_EQ(static_cast<int>(seen.size()), mapping.num_ranks());
    ASSERT_EQ(*seen.begin(), 0);
    ASSERT_EQ(*seen.rbegin(), mapping.num_ranks() - 1);
  });
}

void expect_groups_partition(const RankMapping& mapping, const std::string& axis, int group_size) {
  std::set<std::vector<int>> groups;
  for (int rank = 0; rank < mapping.num_ranks(); ++rank) {
    const auto group = mapping.group_ranks(axis, rank);
    ASSERT_EQ(static_cast<int>(group.size()), group_size);
    const auto own = mapping.coordinates(rank);
    ASSERT_EQ(group[static_cast<std::size_t>(along(own, axis))], rank);
    for (std::size_t i = 0; i < group.size(); ++i) {
      const auto member = mapping.coordinates(group[i]);
      ASSERT_EQ(along(member, axis), static_cast<int>(i));
      ASSERT_EQ(without(member, axis), without(own, axis));
    }
    groups.insert(group);
  }
  std::set<int> members;
  for (const auto& group : groups) {
    members.insert(group.begin(), group.end());
  }
  // Every rank is in a group, and the groups are too few to overlap.
  ASSERT_EQ(static_cast<int>(members.size()), mapping.num_ranks());
  ASSERT_EQ(static_cast<int>(groups.size()) * group_size, mapping.num_ranks());
}

TEST(RankMapping, GroupsOfEachAxisPartitionTheWorldInEveryLayout) {
  for_each_mapping([](const RankMapping& mapping) {
    ASSERT_NO_FATAL_FAILURE(expect_groups_partition(mapping, "dp", mapping.sizes().dp));
    ASSERT_NO_FATAL_FAILURE(expect_groups_partition(mapping, "tp", mapping.sizes().tp));
    ASSERT_NO_FATAL_FAILURE(expect_groups_partition(mapping, "pp", mapping.sizes().pp));
  });
}

TEST(RankMapping, NextAndPreviousAreInverseInEveryLayout) {
  for_each_mapping([](const RankMapping& mapping) {
    for (int rank = 0; rank < mapping.num_ranks(); ++rank) {
      const auto next = mapping.next_pipeline_rank(rank);
      const auto previous = mapping.previous_pipeline_rank(rank);
      ASSERT_EQ(next.has_value(), !mapping.is_pipeline_tail(rank));
      ASSERT_EQ(previous.has_value(), !mapping.is_pipeline_head(rank));
      if (next) {
        ASSERT_EQ(mapping.previous_pipeline_rank(*next), rank);
        ASSERT_EQ(mapping.coordinates(*next).pp, mapping.coordinates(rank).pp + 1);
        ASSERT_EQ(without(mapping.coordinates(*next), "pp"), without(mapping.coordinates(rank), "pp"));
      }
      if (previous) {
        ASSERT_EQ(mapping.next_pipeline_rank(*previous), rank);
      }
    }
  });
}

TEST(RankMapping, HeadsAndTailsAreTheFirstAndLastStageInEveryLayout) {
  for_each_mapping([](const RankMapping& mapping) {
    std::vector<int> heads;
    std::vector<int> tails;
    for (int rank = 0; rank < mapping.num_ranks(); ++rank) {
      const int stage = mapping.coordinates(rank).pp;
      ASSERT_EQ(mapping.is_pipeline_head(rank), stage == 0);
      ASSERT_EQ(mapping.is_pipeline_tail(rank), stage == mapping.sizes().pp - 1);
      if (stage == 0) {
        heads.push_back(rank);
      }
      if (stage == mapping.sizes().pp - 1) {
        tails.push_back(rank);
      }
    }
    ASSERT_EQ(mapping.pipeline_heads(), heads);
    ASSERT_EQ(mapping.pipeline_tails(), tails);
  });
}

TEST(RankMapping, PutsPipelineNeighboursOnNeighbouringRanksByDefault) {
  const RankMapping mapping({.dp = 2, .tp = 2, .pp = 4}, Topology::blocks(16, 8));
  EXPECT_EQ(mapping.next_pipeline_rank(0), 1);
  EXPECT_EQ(mapping.next_pipeline_rank(3), std::nullopt);
  EXPECT_EQ(mapping.group_ranks("pp", 5), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mapping.group_ranks("tp", 1), (std::vector<int>{1, 5}));
  EXPECT_EQ(mapping.group_ranks("dp", 1), (std::vector<int>{1, 9}));
}

TEST(RankMapping, TakesNodesFromTheTopology) {
  const RankMapping blocks({.dp = 12}, Topology::blocks(12, 4));
  EXPECT_EQ(blocks.node_of(7), 1);
  EXPECT_EQ(blocks.local_rank_of(7), 3);
  const RankMapping cyclic({.dp = 12}, Topology::cyclic(12, 3));
  EXPECT_EQ(cyclic.node_of(7), 1);
  EXPECT_EQ(cyclic.local_rank_of(7), 2);
  const RankMapping table({.dp = 4}, Topology::table({0, 1, 1, 0}));
  EXPECT_EQ(table.node_of(3), 0);
  EXPECT_EQ(table.local_rank_of(3), 1);
}

TEST(RankMapping, RefusesWhatDoesNotFit) {
  EXPECT_THROW(RankMapping({.dp = 2}, Topology::blocks(4, 4)), ConfigError);
  EXPECT_THROW(RankMapping({.dp = 0}, Topology::blocks(4, 4)), ConfigError);
  EXPECT_THROW(RankMapping({.dp = 4}, Topology::blocks(4, 4), {"dp", "tp"}), ConfigError);
  const RankMapping mapping({.dp = 4}, Topology::blocks(4, 4));
  EXPECT_THROW(mapping.coordinates(4), ConfigError);
  EXPECT_THROW(mapping.node_of(-1), ConfigError);
  EXPECT_THROW(mapping.local_rank_of(4), ConfigError);
  EXPECT_THROW(mapping.group_ranks("cp", 0), ConfigError);
  EXPECT_THROW(mapping.rank_at({.dp = 4}), ConfigError);
}

}  // namespace
}  // namespace tessera
