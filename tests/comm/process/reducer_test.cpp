#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include "comm/process/roles.h"
#include "comm/reducer_case.h"
#include "support/mpi_job.h"
#include "support/require.h"

namespace tessera::testing {

void check_reducer_role(const Arguments& arguments) {
  const World world = init(WorldOptions().backend(arguments.at(0)));
  require_equal(world.comm().backend(), arguments.at(0), "the backend is " + world.comm().backend());
  require_equal(world.size(), 2, "expected 2 ranks");
  check_reducer(world.comm());
}

namespace {

TEST(ReducerProcesses, RunOnGloo) { expect_success(job_of(2, "reducer", {"gloo"})); }

TEST(ReducerProcesses, RunOnSharedMemory) { expect_success(job_of(2, "reducer", {"shm"})); }

TEST(ReducerProcesses, RunOnMpi) {
  if (std::string(TESSERA_MPIEXEC).empty()) GTEST_SKIP() << "this build has no MPI";
  expect_success(mpi_job_of(2, "reducer", {"mpi"}));
}

}  // namespace
}  // namespace tessera::testing
