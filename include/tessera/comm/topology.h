#pragma once

#include <functional>
#include <vector>

namespace tessera {

/// Which ranks share a node. Regular layouts are arithmetic; only an irregular one is a table.
class Topology {
 public:
  /// Ranks 0..k-1 on node 0, the next k on node 1, ... (the last node may hold fewer).
  static Topology blocks(int num_ranks, int ranks_per_node);
  /// Rank r on node r % num_nodes (mpirun --map-by node).
  static Topology cyclic(int num_ranks, int num_nodes);
  /// Any assignment.
  static Topology table(std::vector<int> node_of_rank);

  int num_ranks() const { return num_ranks_; }
  int num_nodes() const { return num_nodes_; }
  int node_of(int rank) const;
  /// The position of `rank` among the ranks of its node.
  int local_rank_of(int rank) const;
  int num_ranks_on(int node) const;
  std::vector<int> ranks_on(int node) const;
  bool same_node(int a, int b) const { return node_of(a) == node_of(b); }

 private:
  enum class Kind { kBlocks, kCyclic, kTable };
  Topology(Kind kind, int num_ranks, int num_nodes, int ranks_per_node);

  Kind kind_;
  int num_ranks_;
  int num_nodes_;
  int ranks_per_node_;
  std::vector<int> table_;
};

}  // namespace tessera
