#pragma once

#include "fsdp/random_models/dice.h"
#include "fsdp/random_models/node.h"

namespace tessera::testing {

/// A node without nodes in it: a layer of LibTorch, or parameters of its own that operators use.
NodePtr random_leaf(Dice& dice);
/// The layer that ends every model, so that there is always something to train.
NodePtr linear_leaf();
/// Multiplies by a matrix that somebody else holds too.
NodePtr tied_leaf(const at::Tensor& matrix);

}  // namespace tessera::testing
