#include "fsdp/accelerator.h"
#include "support/tested_device.h"

namespace bench {

void prepare_accelerator() { tessera::testing::tested::connect(); }
at::Device accelerator_of(const tessera::World& world) { return world.device(); }

}  // namespace bench
