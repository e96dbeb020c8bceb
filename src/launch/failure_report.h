#pragma once

#include <string>
#include <vector>

#include "launch/attempt.h"

namespace tessera::launch {

/// What happened to an attempt whose rank `first_failure()` failed: the cause with what it wrote, then every other rank
/// in a line. `cause` is why it failed, where that is not of its own making; may be empty.
/// Requires: the attempt is finished.
std::vector<std::string> failure_report(const Attempt& attempt, const RunPlan& plan, int generation,
                                        const std::string& cause);

/// The same of an attempt that was ended because of what happened on another node: `cause`, told here at `time`.
std::vector<std::string> failure_report(const Attempt& attempt, const RunPlan& plan, int generation,
                                        const std::string& cause, Clock::time_point time);

/// What the rank itself found to be the cause of its end, with the other ranks; empty when it found none.
std::string verdict_of(const Rank& rank);

/// "850 ms", "2.5 s".
std::string duration_for_people(Clock::duration duration);

}  // namespace tessera::launch
