#pragma once

#include <tessera/flight/hang_report.h>

#include <optional>
#include <string>
#include <vector>

#include "launch/attempt.h"

namespace tessera::launch {

/// What the ranks of this node were doing when a rank of the job died, from their black boxes. `others`: what is known
/// about ranks of other nodes. Nothing when no rank of this node has recorded a call.
/// Requires: no living rank has been signalled to end yet, which would change what it does.
std::optional<flight::HangReport> node_report(const Attempt& attempt, const RunPlan& plan, std::string trigger,
                                              std::vector<flight::RankStatus> others = {});

/// "ended by SIGKILL", "exit code 3".
std::string end_in_short(int wait_status);

/// DIR/attempt_K/hang_node_N.json.
std::string node_report_path(const RunPlan& plan, int generation);

/// Returns why the file could not be written; empty when it was.
std::string write_node_report(const flight::HangReport& report, const std::string& path);

/// What happened in an attempt: first the rank `first_failure()` with its last output, then one line for every other
/// rank. `cause`: why that rank failed, if the cause lies elsewhere; else empty.
/// Requires: the attempt is finished, and a rank of it failed.
std::vector<std::string> failure_report(const Attempt& attempt, const RunPlan& plan, int generation,
                                        const std::string& cause);

/// The same for an attempt that was ended because of a `cause` on another node, which was reported here at `time`.
std::vector<std::string> failure_report(const Attempt& attempt, const RunPlan& plan, int generation,
                                        const std::string& cause, Clock::time_point time);

/// The cause of its end that the rank itself recorded, after comparison with the other ranks; empty when there is none.
std::string verdict_of(const Rank& rank);

/// "850 ms", "2.5 s".
std::string duration_for_people(Clock::duration duration);

}  // namespace tessera::launch
