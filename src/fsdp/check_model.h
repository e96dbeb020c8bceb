#pragma once

#include <string>

#include "fsdp/plan_units.h"

namespace tessera::fsdp {

/// Why these units cannot be sharded, "" when they can: what the parameters are, and who else holds their memory.
std::string fault_of(const torch::nn::Module& model, const ModelPlan& plan);

}  // namespace tessera::fsdp
