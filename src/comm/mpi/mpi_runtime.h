#pragma once

#include <string>
#include <vector>

#include "comm/connection.h"

namespace tessera::comm {

/// Whether this build has an MPI.
bool has_mpi();

/// "Open MPI v4.1.4, ..." or why there is none.
std::string mpi_version();

/// Sends `text` of rank 0 to all processes that mpirun started: how the address of the rendezvous is told when the
/// launcher gives none. Collective: over all of them. Starts MPI when it was not.
std::string mpi_broadcast(const std::string& text);

/// Requires: all processes of the world were started by one mpirun, with MPI's ranks equal to ours.
Connection connect_mpi(const ConnectRequest& request);

}  // namespace tessera::comm
