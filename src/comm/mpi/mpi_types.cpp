#include "comm/mpi/mpi_types.h"

#include <tessera/core/error.h>

#include <array>
#include <string>

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
  // MPI frees what is left at its end; one operation for the process is made here.
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

}  // namespace tessera::comm
