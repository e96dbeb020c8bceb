#pragma once

#include <ATen/core/Generator.h>

namespace tessera::testing::sim {

/// Of a device; -1: the current one.
const at::Generator& default_generator(int device);

}  // namespace tessera::testing::sim
