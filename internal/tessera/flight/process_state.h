#pragma once

#include <tessera/flight/hang_report.h>

#include <string>

namespace tessera::flight {

/// A name for the set of processes that this process sees in /proc. Two processes for which it is equal can look each
/// other up by process id.
std::string process_space();

struct ProcessState {
  RankCondition condition;
  std::string detail;
};

/// What /proc says of a process of the same space.
ProcessState state_of_process(int process);

}  // namespace tessera::flight
