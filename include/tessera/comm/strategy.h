#pragma once

#include <string_view>

namespace tessera {

/// Which algorithm carries a collective.
enum class CommunicationStrategy {
  /// The backend's own algorithm: shared memory's in-place reduction, Gloo's, MPI's, NCCL's. In files it is called
  /// "allreduce".
  kBackend,
  /// Neighbours in rank order; 2(n-1) messages a rank and 2(n-1)/n of the bytes: best for large messages.
  kRing,
  /// A binary tree of fixed shape; about 2 log2(n) steps: best for small messages, and the same bits for every number
  /// of ranks that is a power of two (see `Communicator::all_reduce_contributions`).
  kTree,
  /// Inside each node first, then one stream a node between nodes, then inside again.
  kHierarchical,
  /// One of the above by message size, from the table that `tessera bench comm` measures.
  kAdaptive,
  kAllReduce [[deprecated("kBackend")]] = kBackend,
};

std::string_view to_string(CommunicationStrategy strategy);

/// The strategy of that name ("allreduce", "ring", "tree", "hierarchical", "adaptive").
/// Throws ConfigError, naming the valid ones, for any other.
CommunicationStrategy parse_communication_strategy(std::string_view name);

}  // namespace tessera
