#pragma once

#include <tessera/comm/communicator.h>

#include <string>

#include "property/meeting.h"
#include "property/program.h"

namespace tessera::testing {

struct Played {
  std::string defect;  ///< the same on every rank; "" without one
  int num_done = 0;    ///< actions that gave what one process gives
  int num_refused = 0;
};

/// Plays a program on this rank, beside one process that does the same, and compares after every action.
/// Collective: over `comm`. Throws std::runtime_error for a rank that hangs.
Played play(const Program& program, const Communicator& comm, Meeting& meeting);

/// On ranks that are threads.
Played play_with_threads(const Program& program);

/// Of the groups that programs play on: a rank that waits for one that refused says so soon.
constexpr std::chrono::seconds kGroupTimeout{8};

}  // namespace tessera::testing
