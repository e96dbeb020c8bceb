#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::launch {

/// How one rank ended.
struct RankResult {
  int exit_code = -1;  ///< 128 + signal when a signal ended it
  std::string output;  ///< standard output and error, as written
};

/// Copies of one program on this host. The variables of a launcher (RANK, WORLD_SIZE, ...) give each its rank.
struct LocalJob {
  int num_ranks = 1;
  std::vector<std::string> command;  ///< the program and its arguments
  std::chrono::seconds timeout{120};
  std::map<std::string, std::string> variables;  ///< besides, or instead of, the launcher's
  bool launcher_variables = true;                ///< off when `command` is itself a launcher
  int ranks_per_node = 0;                        ///< 0: all on one
  /// Called once all ranks run, with their process ids.
  std::function<void(const std::vector<int>& processes)> when_started;
};

/// Runs the job with its rendezvous on a free port of the loopback address.
/// Blocks: until every rank has ended; those that outlive the timeout are killed and have exit code 137.
std::vector<RankResult> run(const LocalJob& job);

/// A port that nothing listened on a moment ago.
int free_port();

/// The path of this executable.
std::string own_path();

}  // namespace tessera::launch
