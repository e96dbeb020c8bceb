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

/// Parameters with fewer elements stay whole.
std::int64_t min_elements_of(const FsdpOptions& options);

/// Cuts a model into units. A parameter that several modules hold belongs to the first of them.
/// Parameters with fewer than `min_elements` elements, and those that are not floating point, stay whole.
ModelPlan plan_units(const torch::nn::Module& model, const WrapPolicy& policy, std::int64_t min_elements);

}  // namespace tessera::fsdp
