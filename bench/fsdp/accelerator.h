#pragma once

#include <tessera/comm/world.h>

namespace bench {

/// Before the world is made: real_accelerator.cpp needs nothing, simulated_accelerator.cpp brings the simulated device
/// of the tests.
void prepare_accelerator();
/// That of this rank. Throws ConfigError where the machine has none.
at::Device accelerator_of(const tessera::World& world);

}  // namespace bench
