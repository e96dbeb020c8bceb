#pragma once

#include <cstdint>

#include "fsdp/random_models/node.h"

namespace tessera::testing {

/// A model of make_random_model() between layers that are worth cutting, the same for a seed each time.
NodePtr make_random_tree(std::uint64_t seed);

}  // namespace tessera::testing
