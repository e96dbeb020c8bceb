#pragma once

#include <tessera/tensor_parallel/tensor_plan.h>

#include <string>

namespace tessera::testing {

/// The plan that cuts this model: see make_parity_model.
TensorPlan plan_for(const std::string& model);

}  // namespace tessera::testing
