#pragma once

#include "support/sim_device/clock.h"

namespace tessera::testing::sim {

/// What the calling host thread knows of the streams: what it has waited for, and what threads knew from which it
/// learnt. Threads learn from each other through mutexes, condition variables, at their start and when they are joined,
/// as in the memory model of C++; not through atomic variables.
Clock known_to_host();

/// The calling thread has waited for all of `clock`.
void host_learns(const Clock& clock);

}  // namespace tessera::testing::sim
