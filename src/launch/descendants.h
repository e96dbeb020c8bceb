#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

namespace tessera::launch {

/// Makes this process the new parent of all its descendants that lose theirs, whatever session or group they are in.
void adopt_orphans();

/// All processes below this one, zombies left out.
std::vector<pid_t> descendants();

/// Kills every descendant and reaps it. Requires: adopt_orphans().
/// Blocks: until none is left or the time has passed. Returns those that would not die.
std::vector<pid_t> kill_descendants(std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace tessera::launch
