#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::testing {

/// How one rank ended.
struct RankResult {
  int exit_code = -1;  ///< 128 + signal for one that a signal ended
  std::string output;  ///< standard output and error, as written
};

/// What the launcher of a test job does besides.
struct SpawnOptions {
  std::chrono::seconds timeout{120};
  std::map<std::string, std::string> variables;
  int ranks_per_node = 0;  ///< 0: all on one
  /// Called once all ranks run, with their process ids.
  std::function<void(const std::vector<int>& processes)> when_started;
};

/// Runs `num_ranks` copies of this executable with `arguments` and the variables of a launcher on a free port of the
/// loopback address. Ranks that outlive the timeout are killed and have exit code 137.
std::vector<RankResult> spawn_ranks(int num_ranks, const std::vector<std::string>& arguments,
                                    const SpawnOptions& options = {});

/// A port that nothing listened on a moment ago.
int free_port();

/// The path of this executable.
std::string own_path();

}  // namespace tessera::testing
