#include <tessera/comm/build.h>

#include "comm/mpi/mpi_runtime.h"
#include "comm/nccl/connect_nccl.h"

namespace tessera {

CommBuild comm_build() {
  // What MPI says ends with a date and an address; the first part names the library.
  const std::string version = comm::mpi_version();
  return {comm::has_mpi(), comm::has_nccl(), version.substr(0, version.find_first_of(",\n"))};
}

}  // namespace tessera
