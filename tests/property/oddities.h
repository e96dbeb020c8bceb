#pragma once

#include <string>
#include <vector>

#include "fsdp/random_models/node.h"

namespace tessera::testing {

/// What a model may have that not every way to spread it can bear: "max_norm", "sparse", "complex", "aliases", "view",
/// and weights laid out by "columns" or with "gaps".
const std::vector<std::string>& oddities();

/// The model with it, or itself when `oddity` is empty. `dense`: an embedding with sparse gradients has dense ones.
NodePtr with_oddity(const NodePtr& model, const std::string& oddity, bool dense);

}  // namespace tessera::testing
