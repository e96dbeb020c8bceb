#include <tessera/core/error.h>
#include <tessera/fsdp/check_optimizer.h>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "fsdp/fsdp_state.h"
#include "fsdp/vector_guard.h"

namespace tessera {
namespace {

using Known = std::unordered_set<const c10::TensorImpl*>;

Known stepped_by(const torch::optim::Optimizer& optimizer) {
  Known known;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) known.insert(parameter.unsafeGetTensorImpl());
  }
  return known;
}

}  // namespace

void check_optimizer(const torch::optim::Optimizer& optimizer, const ShardedModel& sharded) {
  const fsdp::FsdpState& state = *sharded.state();
  const std::string here = " (rank " + std::to_string(state.ranks().shards.world_rank()) + ")";
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) && state.ranks().shards.size() > 1) {
    throw ConfigError(fsdp::why_no_vector() + here);
  }
  const Known stepped = stepped_by(optimizer);
  for (const auto& unit : state.units()) {
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
      if (!stepped.contains(unit->parameters()[i].unsafeGetTensorImpl())) continue;
      throw ConfigError("the optimizer was built on the model's own parameters: " + unit->layout().items()[i].name +
                        " is in shards" + here + ". Build it on sharded.parameters(), after fully_shard()");
    }
  }
  for (const auto& [name, parameter] : sharded.named_parameters()) {
    if (!parameter.requires_grad() || stepped.contains(parameter.unsafeGetTensorImpl())) continue;
    throw ConfigError("the optimizer does not step " + (name.empty() ? "the unit of the model itself" : name) + here +
                      ". Build it on all of sharded.parameters(), in groups as you like");
  }
  sharded.state()->trust_optimizer();
}

}  // namespace tessera
