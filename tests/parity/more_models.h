#pragma once

#include <memory>
#include <string>

#include "parity/models.h"

namespace tessera::testing {

/// Further models of make_parity_model(), still without values; null for any other name.
std::shared_ptr<ParityModel> make_further_model(const std::string& name);

/// Targets that differ for every (step, part).
torch::Tensor classes(int step, int part, int count, int num_classes);

}  // namespace tessera::testing
