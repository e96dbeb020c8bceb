#pragma once

#include <cstdint>

#include "fsdp/random_models/node.h"

namespace tessera::testing {

constexpr int kNumSwitches = 4;  ///< what the data of a micro-batch chooses with

/// A random tree of modules, the same for a seed each time, in double precision, with values from the seed. Nodes may
/// be shared, frozen, recomputed, detached from the graph, left unused, or chosen by the data.
NodePtr make_random_model(std::uint64_t seed);

/// Layers draw their first values from LibTorch's generator, which all threads share: these come from the seed.
void fill_from_seed(Node& model, std::uint64_t seed);

}  // namespace tessera::testing
