#pragma once

#include "comm/algorithms/message_engine.h"

namespace tessera::comm {

/// A binary tree over the ranks: at level k, rank r adds what rank r + 2^k has. The shape of the tree, and so the order
/// of every sum, depends on nothing but the rank numbers.
///
/// Note [One tree for every world size]
/// Let there be 2^m contributions in global order, with an aligned block of 2^j on each rank. A rank first adds its own
/// contributions in pairs of neighbours, then in pairs of pairs: these are the bottom j levels of one binary tree. The
/// levels between ranks are the rest of the same tree. So the sum is the same, bit for bit, however many ranks (a power
/// of two) share it.
class TreeEngine : public MessageEngine {
 public:
  using MessageEngine::MessageEngine;

  std::string name() const override { return transport_->name() + "+tree"; }
  void all_reduce(Buffer data, ReduceOp op, Deadline deadline) override;
  void all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) override;
  void reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) override;
  void broadcast(Buffer data, int root, Deadline deadline) override;
  void reduce(Buffer data, int root, ReduceOp op, Deadline deadline) override;

 private:
  /// Leaves the combination of all ranks in rank 0's `data`, partial ones in the others'.
  void reduce_to_first(Buffer data, ReduceOp op, Deadline deadline);
};

/// The lower levels of that tree: combines `contributions` (a power of two of them) into the first.
void sum_as_tree(const std::vector<Buffer>& contributions);

}  // namespace tessera::comm
