#pragma once

#include <tessera/tensor_parallel/tensor_plan.h>

#include <cstdint>

#include "fsdp/random_models/node.h"

namespace tessera::testing {

/// A plan that fits the model and cuts something: any way to split any layer, sensible or not.
TensorPlan make_random_plan(const Node& model, std::uint64_t seed);

}  // namespace tessera::testing
