#include <tessera/comm/topology.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <string>
#include <utility>

namespace tessera {

Topology::Topology(Kind kind, int num_ranks, int num_nodes, int ranks_per_node)
    : kind_(kind), num_ranks_(num_ranks), num_nodes_(num_nodes), ranks_per_node_(ranks_per_node) {}

Topology Topology::blocks(int num_ranks, int ranks_per_node) {
  if (num_ranks < 1 || ranks_per_node < 1) {
    throw ConfigError("a topology needs at least one rank and one rank a node; found " + std::to_string(num_ranks) +
                      " and " + std::to_string(ranks_per_node));
  }
  return {Kind::kBlocks, num_ranks, (num_ranks + ranks_per_node - 1) / ranks_per_node, ranks_per_node};
}

Topology Topology::cyclic(int num_ranks, int num_nodes) {
  if (num_nodes < 1 || num_nodes > num_ranks) {
    throw ConfigError(std::to_string(num_ranks) + " ranks cannot be dealt to " + std::to_string(num_nodes) + " nodes");
  }
  return {Kind::kCyclic, num_ranks, num_nodes, 0};
}

Topology Topology::table(std::vector<int> node_of_rank) {
  if (node_of_rank.empty()) throw ConfigError("a topology needs at least one rank");
  const int num_nodes = *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1;
  Topology topology(Kind::kTable, static_cast<int>(node_of_rank.size()), num_nodes, 0);
  topology.table_ = std::move(node_of_rank);
  return topology;
}

int Topology::node_of(int rank) const {
  switch (kind_) {
    case Kind::kBlocks:
      return rank / ranks_per_node_;
    case Kind::kCyclic:
      return rank % num_nodes_;
    case Kind::kTable:
      break;
  }
  return table_[static_cast<std::size_t>(rank)];
}

int Topology::local_rank_of(int rank) const {
  switch (kind_) {
    case Kind::kBlocks:
      return rank % ranks_per_node_;
    case Kind::kCyclic:
      return rank / num_nodes_;
    case Kind::kTable:
      break;
  }
  return static_cast<int>(std::count(table_.begin(), table_.begin() + rank, node_of(rank)));
}

int Topology::num_ranks_on(int node) const {
  switch (kind_) {
    case Kind::kBlocks:
      return std::min(ranks_per_node_, num_ranks_ - node * ranks_per_node_);
    case Kind::kCyclic:
      return (num_ranks_ - node + num_nodes_ - 1) / num_nodes_;
    case Kind::kTable:
      break;
  }
  return static_cast<int>(std::count(table_.begin(), table_.end(), node));
}

std::vector<int> Topology::ranks_on(int node) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (node_of(rank) == node) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace tessera
