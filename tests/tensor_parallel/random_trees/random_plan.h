#pragma once

#include <tessera/tensor_parallel/tensor_plan.h>

#include <cstdint>

#include "fsdp/random_models/node.h"

namespace tessera::testing {

/// A plan that fits the model and cuts something: any way to split any layer, sensible or not. `cuts_buffers` off: none
/// of a layer with buffers, which copies and shards of a model keep whole.
TensorPlan make_random_plan(const Node& model, std::uint64_t seed, bool cuts_buffers = true);

}  // namespace tessera::testing
