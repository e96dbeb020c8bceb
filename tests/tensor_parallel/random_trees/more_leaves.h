#pragma once

#include "fsdp/random_models/dice.h"
#include "fsdp/random_models/node.h"

namespace tessera::testing {

/// A leaf that random_leaf() does not make: layers whose cuts meet each other, and operators that cuts pass through.
NodePtr another_leaf(Dice& dice);

}  // namespace tessera::testing
