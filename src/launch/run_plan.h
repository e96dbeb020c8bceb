#pragma once

#include <tessera/launch/run.h>
#include <tessera/launch/run_options.h>

#include <chrono>
#include <string>
#include <vector>

#include "launch/environment.h"

namespace tessera::launch {

/// The options once they are checked, and what follows from them on this machine.
struct RunPlan {
  std::string program;  ///< a path
  std::vector<std::string> arguments;
  int num_ranks = 1;  ///< on this node
  int num_nodes = 1;
  int node_rank = 0;
  std::string master_address;
  int master_port = 0;  ///< 0: to be chosen
  int max_restarts = 0;
  std::string log_dir;
  bool shows_output = true;
  bool shows_errors = true;
  std::vector<std::vector<int>> cpus;  ///< by local rank; empty: ranks are not bound
  std::chrono::milliseconds grace{};
  int num_threads = 1;  ///< of each rank

  int rank_of(int local_rank) const { return node_rank * num_ranks + local_rank; }
  int world_size() const { return num_nodes * num_ranks; }
};

/// Throws ConfigError, naming the option, for what cannot be done. The program is not looked for.
RunPlan resolve(const RunOptions& options, const PlanBinding& plan_binding);

/// What the rank `local_rank` of this node finds in its environment in the given generation of the job.
Environment environment_of(const RunPlan& plan, int local_rank, int generation);

}  // namespace tessera::launch
