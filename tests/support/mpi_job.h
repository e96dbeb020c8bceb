#pragma once

#include "support/process_roles.h"

namespace tessera::testing {

/// mpirun with copies of this program in that role. One "rank" of the job is mpirun itself.
inline launch::LocalJob mpi_job_of(int num_ranks, const std::string& role, const Arguments& arguments = {}) {
  launch::LocalJob job = job_of(1, role, arguments);
  job.command.insert(job.command.begin(),
                     {TESSERA_MPIEXEC, "--allow-run-as-root", "--oversubscribe", "-np", std::to_string(num_ranks)});
  job.launcher_variables = false;
  job.variables = {{"OMPI_MCA_btl", "self,vader"}, {"OMP_NUM_THREADS", "1"}};
  return job;
}

}  // namespace tessera::testing
