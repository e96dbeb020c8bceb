#pragma once

#include <tessera/comm/reduce_op.h>

#include <c10/core/ScalarType.h>
#include <mpi.h>

namespace tessera::comm {

/// The MPI type of an element. Half and bfloat16, which MPI does not know, are 16 bits to it.
MPI_Datatype mpi_type_of(c10::ScalarType dtype);

/// MPI's operation, or for half and bfloat16 one of ours (made once for the process). An average is a sum here.
MPI_Op mpi_op_of(ReduceOp op, c10::ScalarType dtype);

/// Throws CommError with MPI's own text unless `code` is success.
void check_mpi(int code, const char* what);

}  // namespace tessera::comm
