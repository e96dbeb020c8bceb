#pragma once

#include <tessera/comm/reduce_op.h>

#include <string>

#include "comm/engine/buffer.h"
#include "comm/engine/deadline.h"

namespace tessera::comm {

/// Blocking collectives on flat memory: what a backend of ours implements. EngineBackend makes a `c10d::Backend` of it.
/// `counts` always has one entry a rank. Pieces may be their own slices of `whole`.
/// Thread-safety: one call at a time.
class CollectiveEngine {
 public:
  virtual ~CollectiveEngine() = default;
  virtual std::string name() const = 0;

  virtual void all_reduce(Buffer data, ReduceOp op, Deadline deadline) = 0;
  virtual void all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) = 0;
  virtual void reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) = 0;
  virtual void broadcast(Buffer data, int root, Deadline deadline) = 0;
  /// The tensors of ranks other than `root` keep their values.
  virtual void reduce(Buffer data, int root, ReduceOp op, Deadline deadline) = 0;
  /// `whole` counts on `root` alone.
  virtual void gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) = 0;
  virtual void scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) = 0;
  virtual void all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                          Deadline deadline) = 0;
  virtual void barrier(Deadline deadline) = 0;
};

}  // namespace tessera::comm
