#include "comm/mpi/mpi_runtime.h"

#include <tessera/core/error.h>

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <vector>

#include "comm/engine/engine_backend.h"
#include "comm/mpi/mpi_engine.h"

namespace tessera::comm {
namespace {

void finalize_at_exit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Finalize();
}

/// Starts MPI unless the program has. MPI can be started only once in a process, so ours runs until the process exits.
void ensure_started() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  int provided = 0;
  if (initialized != 0) {
    MPI_Query_thread(&provided);
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    std::atexit(finalize_at_exit);
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw ConfigError(
        "MPI was started without MPI_THREAD_MULTIPLE, which asynchronous operations need; call "
        "MPI_Init_thread with it, or let tessera::init() start MPI");
  }
}

/// For MPI, a process that it did not start is alone. MPI would end the program when it is asked for other ranks.
void require_mpi_knows(const ConnectRequest& request) {
  int size = 0;
  int rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int own = request.world_ranks[static_cast<std::size_t>(request.rank)];
  const int last = *std::max_element(request.world_ranks.begin(), request.world_ranks.end());
  if (rank == own && last < size) return;
  throw ConfigError("the backend \"mpi\" needs processes that MPI has started: this one is rank " +
                    std::to_string(rank) + " of " + std::to_string(size) + " for MPI, and rank " + std::to_string(own) +
                    " here, of a group up to rank " + std::to_string(last) +
                    ". Start the program with mpirun, or take another backend");
}

std::shared_ptr<MpiComm> make_comm(const ConnectRequest& request) {
  ensure_started();
  require_mpi_knows(request);
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(world, request.size, request.world_ranks.data(), &members), "MPI_Group_incl");
  // The tag separates groups that form at the same time; 32767 is the largest that every MPI allows.
  const int tag = static_cast<int>(std::hash<std::string>()(request.group) % 32767);
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &comm), "MPI_Comm_create_group");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  return std::make_shared<MpiComm>(comm);
}

}  // namespace

bool has_mpi() { return true; }

std::string mpi_version() {
  std::vector<char> text(MPI_MAX_LIBRARY_VERSION_STRING);
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

std::string mpi_broadcast(const std::string& text) {
  ensure_started();
  int length = static_cast<int>(text.size());
  check_mpi(MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Bcast");
  std::string result = text;
  result.resize(static_cast<std::size_t>(length));
  check_mpi(MPI_Bcast(result.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast");
  return result;
}

Connection connect_mpi(const ConnectRequest& request) {
  auto comm = make_comm(request);
  auto transport = std::make_shared<MpiTransport>(comm);
  Connection connection;
  connection.transport = transport;
  connection.backend = c10::make_intrusive<EngineBackend>(request.rank, request.size,
                                                          std::make_shared<MpiEngine>(comm, request.rank, request.size),
                                                          transport, request.timeout);
  connection.is_zero_copy = [](const void*, std::size_t) { return false; };
  return connection;
}

}  // namespace tessera::comm
