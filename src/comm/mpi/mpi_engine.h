#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/comm/transport.h>

#include <c10/core/ScalarType.h>

#include <memory>
#include <mpi.h>
#include <string>
#include <utility>

#include "comm/engine/collective_engine.h"

namespace tessera::comm {

/// The MPI type of an element. MPI has no half and bfloat16; it moves them as 16-bit integers.
MPI_Datatype mpi_type_of(c10::ScalarType dtype);

/// MPI's operation, or for half and bfloat16 one of ours (made once for the process). An average is a sum here.
MPI_Op mpi_op_of(ReduceOp op, c10::ScalarType dtype);

/// Throws CommError with MPI's own text unless `code` is success.
void check_mpi(int code, const char* what);

/// An MPI communicator of our own, so that our messages never mix with the program's.
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

/// Messages by MPI_Isend and MPI_Irecv; the channel is the tag.
class MpiTransport : public Transport {
 public:
  explicit MpiTransport(std::shared_ptr<MpiComm> comm) : comm_(std::move(comm)) {}

  std::string name() const override { return "mpi"; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int peer, int channel) override;
  std::unique_ptr<Transfer> recv(std::span<std::byte> data, int peer, int channel) override;

 private:
  std::shared_ptr<MpiComm> comm_;
};

}  // namespace tessera::comm
