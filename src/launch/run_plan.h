#pragma once

#include <tessera/launch/run.h>
#include <tessera/launch/run_options.h>
#include <tessera/store/secret.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launch/process.h"

namespace tessera::launch {

/// The checked options, and what follows from them on this machine.
struct RunPlan {
  std::string program;  ///< a path
  std::vector<std::string> arguments;
  int num_ranks = 1;  ///< on this node
  int num_nodes = 1;
  int node_rank = 0;
  int first_rank = 0;  ///< of this node
  int world_size = 1;
  std::string master_address;
  int master_port = 0;  ///< 0: to be chosen
  std::string store_address;
  int store_port = 0;                   ///< 0: to be chosen
  std::optional<store::Secret> secret;  ///< of the job's store
  int max_restarts = 0;
  std::string log_dir;
  bool shows_output = true;
  bool shows_errors = true;
  std::vector<std::vector<int>> cpus;  ///< by local rank; empty: ranks are not bound
  std::chrono::milliseconds grace{};
  std::chrono::milliseconds meeting_timeout{};  ///< for all nodes to come
  int num_threads = 1;                          ///< of each rank
  std::string progress_path;                    ///< where rank 0 writes its progress line; empty: nowhere
  std::size_t progress_width = 0;

  int rank_of(int local_rank) const { return first_rank + local_rank; }
  /// The folder for all files of an attempt. Requires: log_dir.
  std::string attempt_folder(int generation) const { return log_dir + "/attempt_" + std::to_string(generation); }
};

/// Throws ConfigError, naming the option, for options that cannot be met. Does not search for the program.
RunPlan resolve(const RunOptions& options, const PlanBinding& plan_binding);

/// The environment of the rank `local_rank` of this node in the given generation of the job.
Environment environment_of(const RunPlan& plan, int local_rank, int generation, const std::string& black_box);

}  // namespace tessera::launch
