#pragma once

#include <tessera/fsdp/fully_shard.h>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

/// Throws ConfigError, with the reason and the remedy, for an optimizer that cannot train the model: one that was built
/// on `model->parameters()`, that leaves some of `sharded.parameters()` out, or that computes with all parameters as
/// one vector (LBFGS). Without this call, the optimizer's first step throws where the fault can be detected there.
void check_optimizer(const torch::optim::Optimizer& optimizer, const ShardedModel& sharded);

}  // namespace tessera
