#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tessera::comm {

/// Looks a variable up; nothing when it is not set.
using GetVariable = std::function<std::optional<std::string>(const char* name)>;

/// What the launcher says about this process.
struct LaunchEnvironment {
  std::string launcher = "single";
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int num_nodes = 1;
  std::string master_address;    ///< empty: not given
  int master_port = 0;           ///< 0: not given
  bool agent_has_store = false;  ///< torchrun's agent listens there; otherwise rank 0 does
  std::string store_address;     ///< of the launcher's own store; empty: it has none
  int store_port = 0;
  std::string generation = "0";  ///< changes with every restart of the job
};

/// Reads the variables of `tessera run` and torchrun, of mpirun (Open MPI, MPICH) and of srun, in this order: when one
/// launcher has started another, those of the inner one count.
/// Throws ConfigError for a variable that is missing, is not a number or contradicts another.
LaunchEnvironment read_launch_environment(const GetVariable& get);

/// That of this process.
GetVariable process_environment();

}  // namespace tessera::comm
