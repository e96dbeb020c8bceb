#pragma once

#include "launch/run_plan.h"

namespace tessera::launch {

/// Runs the job in a second process and represents it towards the user.
///
/// Note [Nothing outlives the launcher]
/// Any one process can be killed without warning, and a rank may leave its group, its session and its parent. So the
/// launcher is two processes: the user starts the front, and the supervisor does the work. Both adopt orphans, so that
/// all processes that a rank starts remain their descendants. When the front dies, the supervisor sees its pipe close,
/// kills all its descendants and ends. When the supervisor dies, the kernel kills the ranks at once; the front inherits
/// all other descendants and kills them.
///
/// Returns the exit code of the command. Blocks: until the job is over.
int run_behind_front(const RunPlan& plan);

}  // namespace tessera::launch
