#pragma once

#include "comm/algorithms/message_engine.h"

namespace tessera::comm {

/// Everything between neighbours in rank order. A rank sends 2(n-1)/n of the bytes of an all_reduce, (n-1)/n of those
/// of an all_gather or reduce_scatter; a broadcast or reduce flows along the ring in segments.
class RingEngine : public MessageEngine {
 public:
  using MessageEngine::MessageEngine;

  std::string name() const override { return transport_->name() + "+ring"; }
  void all_reduce(Buffer data, ReduceOp op, Deadline deadline) override;
  void all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) override;
  void reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) override;
  void broadcast(Buffer data, int root, Deadline deadline) override;
  void reduce(Buffer data, int root, ReduceOp op, Deadline deadline) override;

 private:
  int block_of_step(int step) const { return messages_.neighbour(-step); }
  /// Sends `going` to the next rank while `arriving` comes from the previous one; adds `contribution` to `arriving`.
  void pass_on(Buffer going, Buffer arriving, Buffer contribution, ReduceOp op, Deadline deadline);
};

}  // namespace tessera::comm
