#pragma once

#include <sys/prctl.h>

#include <csignal>

#include "support/process_roles.h"

// What the processes of these tests do. Each is defined beside the test that spawns it.
namespace tessera::testing {

/// A test that fails half-way leaves nobody behind.
inline void die_with_the_test() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

/// Arguments: port, secret, key, milliseconds between pings. Holds a lease until it is killed.
void hold_lease(const Arguments& arguments);
/// Arguments: a file that takes the port, secret, silence limit in milliseconds. Serves until it is killed.
void serve(const Arguments& arguments);
/// No arguments. Serves itself, stops, and when it is continued sees whether anybody was taken for dead.
void stall(const Arguments& arguments);

}  // namespace tessera::testing
