#pragma once

#include <tessera/comm/communicator.h>

namespace tessera::testing {

/// Trains a small model for a few steps under `c10d::Reducer` on this group, each rank with data of its own, and
/// compares the gradients with the average of those of single processes. Throws what is wrong.
/// Collective: over the group.
void check_reducer(const Communicator& comm);

}  // namespace tessera::testing
