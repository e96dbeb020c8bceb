#include <tessera/core/error.h>

#include "comm/mpi/mpi_runtime.h"

namespace tessera::comm {
namespace {

const char* const kMissing = "this build has no MPI; configure with -DTESSERA_WITH_MPI=ON, or choose another backend";

}  // namespace

bool has_mpi() { return false; }

std::string mpi_version() { return "not compiled in"; }

std::string mpi_broadcast(const std::string& /*text*/) { throw ConfigError(kMissing); }

Connection connect_mpi(const ConnectRequest& /*request*/) { throw ConfigError(kMissing); }

}  // namespace tessera::comm
