#include "comm/mpi/mpi_engine.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "comm/engine/reduce_kernels.h"

namespace tessera::comm {
namespace {

template <c10::ScalarType dtype, ReduceOp op>
void reduce_for_mpi(void* in, void* inout, int* length, MPI_Datatype* /*type*/) {
  std::array<std::byte*, 1> destination{static_cast<std::byte*>(inout)};
  std::array<const std::byte*, 2> sources{static_cast<const std::byte*>(in), static_cast<const std::byte*>(inout)};
  reduce_into(destination, sources, *length, dtype, op, 1);
}

template <c10::ScalarType dtype, ReduceOp op>
MPI_Op custom_op() {
  // Made once for the process; MPI frees it when it ends.
  static const MPI_Op made = [] {
    MPI_Op created = MPI_OP_NULL;
    check_mpi(MPI_Op_create(&reduce_for_mpi<dtype, op>, 1, &created), "MPI_Op_create");
    return created;
  }();
  return made;
}

template <c10::ScalarType dtype>
MPI_Op custom_op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return custom_op<dtype, ReduceOp::kSum>();
    case ReduceOp::kMin:
      return custom_op<dtype, ReduceOp::kMin>();
    case ReduceOp::kMax:
      return custom_op<dtype, ReduceOp::kMax>();
    case ReduceOp::kProduct:
      return custom_op<dtype, ReduceOp::kProduct>();
  }
  throw InternalError("an unknown reduction");
}

MPI_Op native_op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return MPI_SUM;
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kProduct:
      return MPI_PROD;
  }
  throw InternalError("an unknown reduction");
}

}  // namespace

MPI_Datatype mpi_type_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return MPI_FLOAT;
    case c10::ScalarType::Double:
      return MPI_DOUBLE;
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return MPI_UINT16_T;
    case c10::ScalarType::Long:
      return MPI_INT64_T;
    case c10::ScalarType::Int:
      return MPI_INT32_T;
    case c10::ScalarType::Short:
      return MPI_INT16_T;
    case c10::ScalarType::Char:
      return MPI_INT8_T;
    case c10::ScalarType::Byte:
      return MPI_UINT8_T;
    case c10::ScalarType::Bool:
      return MPI_C_BOOL;
    default:
      throw ConfigError(std::string("the mpi backend does not move tensors of type ") + c10::toString(dtype));
  }
}

MPI_Op mpi_op_of(ReduceOp op, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Half) return custom_op_of<c10::ScalarType::Half>(op);
  if (dtype == c10::ScalarType::BFloat16) return custom_op_of<c10::ScalarType::BFloat16>(op);
  if (dtype == c10::ScalarType::Bool) {  // MPI has no arithmetic on booleans
    return op == ReduceOp::kMin || op == ReduceOp::kProduct ? MPI_LAND : MPI_LOR;
  }
  return native_op_of(op);
}

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(std::string(what) + " failed: " + std::string(text.data(), static_cast<std::size_t>(length)));
}

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

/// MPI refuses null pointers even for zero elements.
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

namespace {

// MPI counts in int; a longer message is sent as several.
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

class MpiTransfer : public Transfer {
 public:
  explicit MpiTransfer(std::vector<MPI_Request> requests) : requests_(std::move(requests)) {}
  ~MpiTransfer() override {
    for (auto& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }

  bool test() override {
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
    return done != 0;
  }

  void wait(std::chrono::steady_clock::time_point deadline) override {
    for (auto& request : requests_) wait_mpi(request, deadline, "a message");
  }

 private:
  std::vector<MPI_Request> requests_;
};

template <typename Start>
std::unique_ptr<Transfer> in_parts(std::size_t num_bytes, Start start) {
  std::vector<MPI_Request> requests;
  std::size_t begin = 0;
  do {
    requests.push_back(MPI_REQUEST_NULL);
    start(begin, static_cast<int>(std::min(kMaxBytes, num_bytes - begin)), &requests.back());
    begin += kMaxBytes;
  } while (begin < num_bytes);
  return std::make_unique<MpiTransfer>(std::move(requests));
}

}  // namespace

std::unique_ptr<Transfer> MpiTransport::send(std::span<const std::byte> data, int peer, int channel) {
  return in_parts(data.size(), [&](std::size_t begin, int length, MPI_Request* request) {
    check_mpi(MPI_Isend(data.data() + begin, length, MPI_BYTE, peer, channel, comm_->get(), request), "MPI_Isend");
  });
}

std::unique_ptr<Transfer> MpiTransport::recv(std::span<std::byte> data, int peer, int channel) {
  return in_parts(data.size(), [&](std::size_t begin, int length, MPI_Request* request) {
    check_mpi(MPI_Irecv(data.data() + begin, length, MPI_BYTE, peer, channel, comm_->get(), request), "MPI_Irecv");
  });
}

}  // namespace tessera::comm
