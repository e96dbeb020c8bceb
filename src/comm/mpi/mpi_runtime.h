#pragma once

#include <string>
#include <vector>

#include "comm/connector.h"

namespace tessera::comm {

/// Whether this build has an MPI.
bool has_mpi();

/// "Open MPI v4.1.4, ..." or why there is none.
std::string mpi_version();

/// Returns rank 0's `text` on all processes that mpirun started. It carries the address of the rendezvous when the
/// launcher gives none. Collective: over all of these processes. Starts MPI if it is not running.
std::string mpi_broadcast(const std::string& text);

/// Requires: all processes of the world were started by one mpirun, with MPI's ranks equal to ours.
Connection connect_mpi(const ConnectRequest& request);

}  // namespace tessera::comm
