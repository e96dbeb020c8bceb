#pragma once

#include "launch/run_plan.h"

namespace tessera::launch {

/// Runs the job in a second process and stands in for it towards the user.
///
/// Note [Nothing outlives the launcher]
/// Any one process can be killed without warning, and a rank may leave its group, its session and its parent. So there
/// are two: the supervisor does the work, the front is what the user started. Both adopt orphans, so that whatever a
/// rank starts stays below them. When the front dies, the supervisor sees its pipe close, kills all that is below it
/// and ends. When the supervisor dies, all that was below it becomes the front's, which does the same; the ranks
/// themselves are killed by the kernel even before.
///
/// Returns the exit code of the command. Blocks: until the job is over.
int run_behind_front(const RunPlan& plan);

}  // namespace tessera::launch
