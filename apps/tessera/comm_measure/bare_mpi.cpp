#include <ATen/ATen.h>
#include <mpi.h>

#include "comm/mpi/mpi_engine.h"
#include "comm/mpi/mpi_runtime.h"
#include "tessera/comm_measure/contestant.h"

namespace tessera::comm {

std::vector<Contestant> bare_mpi(const World& /*world*/) {
  mpi_broadcast("");  // starts MPI
  Contestant contestant;
  contestant.name = "bare mpi";
  contestant.allocate = [](std::int64_t count) { return at::zeros({count}, at::kFloat); };
  contestant.all_reduce = [](const at::Tensor& whole) {
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, whole.mutable_data_ptr(), static_cast<int>(whole.numel()), MPI_FLOAT, MPI_SUM,
                            MPI_COMM_WORLD),
              "MPI_Allreduce");
  };
  contestant.all_gather = [](const at::Tensor& whole, const at::Tensor& piece) {
    const int count = static_cast<int>(piece.numel());
    check_mpi(MPI_Allgather(piece.const_data_ptr(), count, MPI_FLOAT, whole.mutable_data_ptr(), count, MPI_FLOAT,
                            MPI_COMM_WORLD),
              "MPI_Allgather");
  };
  contestant.reduce_scatter = [](const at::Tensor& piece, const at::Tensor& whole) {
    check_mpi(MPI_Reduce_scatter_block(whole.const_data_ptr(), piece.mutable_data_ptr(),
                                       static_cast<int>(piece.numel()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
              "MPI_Reduce_scatter_block");
  };
  return {contestant};
}

}  // namespace tessera::comm
