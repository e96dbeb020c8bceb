#pragma once

#include <tessera/flight/hang_report.h>

#include <string>

namespace tessera::flight {

/// Names what this process sees in /proc: two processes with the same name can look each other up by id.
std::string process_space();

struct ProcessState {
  RankCondition condition;
  std::string detail;
};

/// What /proc says of a process of the same space.
ProcessState state_of_process(int process);

}  // namespace tessera::flight
