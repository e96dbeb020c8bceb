#include <tessera/comm/topology.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tessera {
namespace {

/// Compares every query with what counting in the table of nodes gives.
void expect_agrees(const Topology& topology, const std::vector<int>& nodes) {
  const int num_ranks = static_cast<int>(nodes.size());
  const int num_nodes = *std::max_element(nodes.begin(), nodes.end()) + 1;
  ASSERT_EQ(topology.num_ranks(), num_ranks);
  ASSERT_EQ(topology.num_nodes(), num_nodes);
  std::vector<std::vector<int>> ranks_on(static_cast<std::size_t>(num_nodes));
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int node = nodes[static_cast<std::size_t>(rank)];
    auto& here = ranks_on[static_cast<std::size_t>(node)];
    ASSERT_EQ(topology.node_of(rank), node) << "rank " << rank;
    ASSERT_EQ(topology.local_rank_of(rank), static_cast<int>(here.size())) << "rank " << rank;
    here.push_back(rank);
    for (int other = 0; other < num_ranks; ++other) {
      ASSERT_EQ(topology.same_node(rank, other), node == nodes[static_cast<std::size_t>(other)]);
    }
  }
  for (int node = 0; node < num_nodes; ++node) {
    const auto& here = ranks_on[static_cast<std::size_t>(node)];
    ASSERT_EQ(topology.num_ranks_on(node), static_cast<int>(here.size())) << "node " << node;
    ASSERT_EQ(topology.ranks_on(node), here) << "node " << node;
  }
}

TEST(Topology, BlocksAgreeWithCountingForEverySize) {
  for (int num_ranks = 1; num_ranks <= 17; ++num_ranks) {
    for (int per_node = 1; per_node <= num_ranks + 2; ++per_node) {
      std::vector<int> nodes;
      for (int rank = 0; rank < num_ranks; ++rank) nodes.push_back(rank / per_node);
      SCOPED_TRACE(std::to_string(num_ranks) + " ranks, " + std::to_string(per_node) + " a node");
      expect_agrees(Topology::blocks(num_ranks, per_node), nodes);
    }
  }
}

TEST(Topology, CyclicAgreesWithCountingForEverySize) {
  for (int num_ranks = 1; num_ranks <= 17; ++num_ranks) {
    for (int num_nodes = 1; num_nodes <= num_ranks; ++num_nodes) {
      std::vector<int> nodes;
      for (int rank = 0; rank < num_ranks; ++rank) nodes.push_back(rank % num_nodes);
      SCOPED_TRACE(std::to_string(num_ranks) + " ranks, " + std::to_string(num_nodes) + " nodes");
      expect_agrees(Topology::cyclic(num_ranks, num_nodes), nodes);
    }
  }
}

TEST(Topology, TableAgreesWithCounting) {
  for (const std::vector<int>& nodes : {std::vector<int>{0}, std::vector<int>{1, 0}, std::vector<int>{0, 0, 1, 0, 2, 1},
                                        std::vector<int>{2, 1, 0, 2}}) {
    expect_agrees(Topology::table(nodes), nodes);
  }
}

TEST(Topology, RefusesWhatHoldsNoRank) {
  EXPECT_THROW(Topology::blocks(0, 1), ConfigError);
  EXPECT_THROW(Topology::blocks(4, 0), ConfigError);
  EXPECT_THROW(Topology::cyclic(3, 0), ConfigError);
  EXPECT_THROW(Topology::cyclic(3, 4), ConfigError);
  EXPECT_THROW(Topology::table({}), ConfigError);
}

}  // namespace
}  // namespace tessera
