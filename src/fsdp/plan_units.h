#pragma once

#include <tessera/fsdp/fsdp_options.h>
#include <tessera/shard/named_tensors.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::fsdp {

/// Parameters that are gathered together: of one dtype, and all trained or all frozen.
struct UnitPlan {
  std::string name;  ///< of the module; "" for the model itself
  NamedTensors parameters;
  c10::Device device;  ///< where they train
};

struct ModelPlan {
  std::vector<UnitPlan> units;
  NamedTensors replicated;  ///< parameters that stay whole on every rank
};

/// Cuts a model into units, by the options' `auto_wrap`, `max_unit_bytes` and `min_num_params`. A parameter that
/// several modules hold belongs to the first of them; one that is not floating point stays whole.
ModelPlan plan_units(const torch::nn::Module& model, const FsdpOptions& options);

/// Why these units cannot be sharded, "" when they can. Checks the kinds of the parameters, and whether other tensors
/// share their memory.
std::string fault_of(const torch::nn::Module& model, const ModelPlan& plan);

}  // namespace tessera::fsdp
