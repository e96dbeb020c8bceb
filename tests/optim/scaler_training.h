#pragma once

#include <tessera/comm/world.h>

namespace tessera::testing {

/// For one rank of a 2 x 2 mesh; throws when anything is not as it should be.

/// An infinity on each rank in turn, alone, makes all ranks skip that update and lower the scale, and no other one.
void check_that_all_skip(const World& world);

/// A network in fp16, its outputs split over "tp", its samples over "dp". In 1 of 20 updates one rank has an infinity.
void check_that_training_survives(const World& world);

}  // namespace tessera::testing
