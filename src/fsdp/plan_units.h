#pragma once

#include <tessera/fsdp/fsdp_options.h>
#include <tessera/fsdp/wrap_policy.h>
#include <tessera/shard/named_tensors.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::fsdp {

/// Parameters that are gathered together: of one dtype, and all trained or all frozen.
struct UnitPlan {
  std::string name;  ///< of the module; "" for the model itself
  NamedTensors parameters;
};

struct ModelPlan {
  std::vector<UnitPlan> units;
  NamedTensors replicated;  ///< parameters that stay whole on every rank
};

/// Cuts a model into units, by the options' `auto_wrap`, `max_unit_bytes` and `min_num_params`. A parameter that
/// several modules hold belongs to the first of them; one that is not floating point stays whole.
ModelPlan plan_units(const torch::nn::Module& model, const FsdpOptions& options);

}  // namespace tessera::fsdp
