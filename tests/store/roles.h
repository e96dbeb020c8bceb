#pragma once

#include "support/process_roles.h"

// What the processes of these tests do. Each is defined beside the test that spawns it.
namespace tessera::testing {

/// Arguments: port, secret, key. Holds a lease until it is killed.
void hold_lease(const Arguments& arguments);
/// Arguments: a file that takes the port, secret. Serves until it is killed.
void serve(const Arguments& arguments);

}  // namespace tessera::testing
