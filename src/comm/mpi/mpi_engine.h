#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <utility>

#include "comm/engine/collective_engine.h"

namespace tessera::comm {

/// An MPI communicator of our own, so that our messages never meet the program's.
class MpiComm {
 public:
  explicit MpiComm(MPI_Comm comm) : comm_(comm) {}
  ~MpiComm();
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;

  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_;
};

/// Polls `request` until it is done, yielding more and more: MPI has no wait with a deadline.
/// Throws CommError after the deadline; the request is then abandoned, and the group with it.
void wait_mpi(MPI_Request& request, std::chrono::steady_clock::time_point deadline, const char* what);

/// Collectives by MPI's non-blocking operations.
class MpiEngine : public CollectiveEngine {
 public:
  MpiEngine(std::shared_ptr<MpiComm> comm, int rank, int size) : comm_(std::move(comm)), rank_(rank), size_(size) {}

  std::string name() const override { return "mpi"; }
  void all_reduce(Buffer data, ReduceOp op, Deadline deadline) override;
  void all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) override;
  void reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) override;
  void broadcast(Buffer data, int root, Deadline deadline) override;
  void reduce(Buffer data, int root, ReduceOp op, Deadline deadline) override;
  void gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) override;
  void scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) override;
  void all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                  Deadline deadline) override;
  void barrier(Deadline deadline) override;

 private:
  std::shared_ptr<MpiComm> comm_;
  int rank_;
  int size_;
};

}  // namespace tessera::comm
