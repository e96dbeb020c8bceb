#pragma once

#include <tessera/flight/hang_report.h>

#include <optional>
#include <string>
#include <vector>

#include "launch/attempt.h"

namespace tessera::launch {

/// What the ranks of this node were doing when one of the job died, from their black boxes; `others` are what is known
/// of ranks elsewhere. Nothing when no rank of this node has recorded a call.
/// Requires: the ranks that live have not been told to end, for that would change what they do.
std::optional<flight::HangReport> node_report(const Attempt& attempt, const RunPlan& plan, std::string trigger,
                                              std::vector<flight::RankStatus> others = {});

/// "ended by SIGKILL", "exit code 3".
std::string end_in_short(int wait_status);

/// DIR/attempt_K/hang_node_N.json.
std::string node_report_path(const RunPlan& plan, int generation);

/// Returns why the file could not be written; empty when it was.
std::string write_node_report(const flight::HangReport& report, const std::string& path);

}  // namespace tessera::launch
