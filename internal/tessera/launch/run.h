#pragma once

#include <tessera/launch/run_options.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::launch {

/// Returns the processors of each rank of this node. `binding` (kCore or kNuma) divides `allowed` among `num_ranks`.
using PlanBinding =
    std::function<std::vector<std::vector<int>>(Binding binding, int num_ranks, const std::vector<int>& allowed)>;

/// `tessera run`: starts the program and its arguments as the ranks of a job, shows and keeps their output, and ends
/// all of them when one fails; `max_restarts` says how often it starts them again. Binding to cores is left to
/// `plan_binding`, because it needs a library that other users of this module need not link.
///
/// Returns the exit code of the command: 0; that of the rank that failed first, or 128 + its signal; 130, 143 or 129
/// after SIGINT, SIGTERM or SIGHUP; 126 or 127 for a program that cannot be executed or found.
/// Throws ConfigError for options that cannot be met.
/// When it returns, no process that the job started is left; nor is one a moment after this process is killed.
/// Blocks: until the job is over. Requires: that the process has one thread, and no children that matter.
int run_job(const RunOptions& options, const std::vector<std::string>& command, const PlanBinding& plan_binding);

}  // namespace tessera::launch
