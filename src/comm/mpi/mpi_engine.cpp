#include "comm/mpi/mpi_engine.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <thread>
#include <vector>

#include "comm/engine/reduce_kernels.h"
#include "comm/mpi/mpi_types.h"

namespace tessera::comm {
namespace {

// MPI counts in int. Operations that work element by element are cut into parts of this length.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 30;

int checked_int(std::int64_t value) {
  if (value > INT_MAX) {
    throw ConfigError("MPI counts elements in 32 bits and cannot move " + std::to_string(value) +
                      " at once; split the tensor");
  }
  return static_cast<int>(value);
}

/// Counts and offsets as MPI takes them.
struct IntCounts {
  explicit IntCounts(const Counts& from) {
    for (const std::int64_t count : from) counts.push_back(checked_int(count));
    for (const std::int64_t offset : offsets_of(from)) offsets.push_back(checked_int(offset));
  }
  std::vector<int> counts;
  std::vector<int> offsets;
};

template <typename Operation>
void in_parts(Buffer data, Operation operation) {
  std::int64_t begin = 0;
  do {
    operation(data.slice(begin, std::min(kMaxElements, data.count - begin)));
    begin += kMaxElements;
  } while (begin < data.count);
}

/// MPI refuses null pointers even for nothing.
void* pointer(const Buffer& buffer) {
  static std::byte nothing{};
  return buffer.data == nullptr ? &nothing : buffer.data;
}

bool overlap(const Buffer& a, const Buffer& b) {
  return a.data < b.data + b.num_bytes() && b.data < a.data + a.num_bytes();
}

}  // namespace

MpiComm::~MpiComm() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Comm_free(&comm_);
}

void wait_mpi(MPI_Request& request, std::chrono::steady_clock::time_point deadline, const char* what) {
  for (int attempt = 0;; ++attempt) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done != 0) return;
    if (attempt < 200) continue;
    if (attempt < 2000) {
      std::this_thread::yield();
      continue;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      throw CommError(std::string(what) + " was not done in time; MPI does not tell which rank is missing");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void MpiEngine::all_reduce(Buffer data, ReduceOp op, Deadline deadline) {
  in_parts(data, [&](Buffer part) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, pointer(part), checked_int(part.count), mpi_type_of(part.dtype),
                             mpi_op_of(op, part.dtype), comm_->get(), &request),
              "MPI_Iallreduce");
    wait_mpi(request, deadline.at(), "all_reduce");
  });
  if (op == ReduceOp::kAvg) divide(data.data, data.count, data.dtype, size_);
}

void MpiEngine::all_gather(Buffer whole, Buffer piece, const Counts& counts, Deadline deadline) {
  const IntCounts ints(counts);
  const auto me = static_cast<std::size_t>(rank_);
  // In place is the one form in which MPI lets the piece be part of the whole.
  const Buffer mine = whole.slice(ints.offsets[me], counts[me]);
  if (mine.data != piece.data && piece.count > 0) {
    std::memcpy(mine.data, piece.data, static_cast<std::size_t>(piece.num_bytes()));
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, pointer(whole), ints.counts.data(), ints.offsets.data(),
                            mpi_type_of(whole.dtype), comm_->get(), &request),
            "MPI_Iallgatherv");
  wait_mpi(request, deadline.at(), "all_gather");
}

void MpiEngine::reduce_scatter(Buffer piece, Buffer whole, const Counts& counts, ReduceOp op, Deadline deadline) {
  const IntCounts ints(counts);
  std::vector<std::byte> apart(overlap(piece, whole) ? static_cast<std::size_t>(piece.num_bytes()) : 0);
  const Buffer target = apart.empty() ? piece : Buffer{apart.data(), piece.count, piece.dtype};
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ireduce_scatter(pointer(whole), pointer(target), ints.counts.data(), mpi_type_of(whole.dtype),
                                mpi_op_of(op, whole.dtype), comm_->get(), &request),
            "MPI_Ireduce_scatter");
  wait_mpi(request, deadline.at(), "reduce_scatter");
  if (!apart.empty()) std::memcpy(piece.data, apart.data(), apart.size());
  if (op == ReduceOp::kAvg) divide(piece.data, piece.count, piece.dtype, size_);
}

void MpiEngine::broadcast(Buffer data, int root, Deadline deadline) {
  in_parts(data, [&](Buffer part) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibcast(pointer(part), checked_int(part.count), mpi_type_of(part.dtype), root, comm_->get(), &request),
              "MPI_Ibcast");
    wait_mpi(request, deadline.at(), "broadcast");
  });
}

void MpiEngine::reduce(Buffer data, int root, ReduceOp op, Deadline deadline) {
  in_parts(data, [&](Buffer part) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ireduce(rank_ == root ? MPI_IN_PLACE : pointer(part), pointer(part), checked_int(part.count),
                          mpi_type_of(part.dtype), mpi_op_of(op, part.dtype), root, comm_->get(), &request),
              "MPI_Ireduce");
    wait_mpi(request, deadline.at(), "reduce");
  });
  if (op == ReduceOp::kAvg && rank_ == root) divide(data.data, data.count, data.dtype, size_);
}

void MpiEngine::gather(Buffer whole, Buffer piece, const Counts& counts, int root, Deadline deadline) {
  const IntCounts ints(counts);
  MPI_Request request = MPI_REQUEST_NULL;
  const MPI_Datatype type = mpi_type_of(piece.dtype);
  check_mpi(MPI_Igatherv(pointer(piece), checked_int(piece.count), type, pointer(whole), ints.counts.data(),
                         ints.offsets.data(), type, root, comm_->get(), &request),
            "MPI_Igatherv");
  wait_mpi(request, deadline.at(), "gather");
}

void MpiEngine::scatter(Buffer piece, Buffer whole, const Counts& counts, int root, Deadline deadline) {
  const IntCounts ints(counts);
  MPI_Request request = MPI_REQUEST_NULL;
  const MPI_Datatype type = mpi_type_of(piece.dtype);
  check_mpi(MPI_Iscatterv(pointer(whole), ints.counts.data(), ints.offsets.data(), type, pointer(piece),
                          checked_int(piece.count), type, root, comm_->get(), &request),
            "MPI_Iscatterv");
  wait_mpi(request, deadline.at(), "scatter");
}

void MpiEngine::all_to_all(Buffer received, const Counts& recv_counts, Buffer sent, const Counts& send_counts,
                           Deadline deadline) {
  const IntCounts in(recv_counts);
  const IntCounts out(send_counts);
  MPI_Request request = MPI_REQUEST_NULL;
  const MPI_Datatype type = mpi_type_of(sent.dtype);
  check_mpi(MPI_Ialltoallv(pointer(sent), out.counts.data(), out.offsets.data(), type, pointer(received),
                           in.counts.data(), in.offsets.data(), type, comm_->get(), &request),
            "MPI_Ialltoallv");
  wait_mpi(request, deadline.at(), "all_to_all");
}

void MpiEngine::barrier(Deadline deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm_->get(), &request), "MPI_Ibarrier");
  wait_mpi(request, deadline.at(), "barrier");
}

}  // namespace tessera::comm
