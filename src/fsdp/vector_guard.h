#pragma once

#include <tessera/intercept/watch.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/shard_lock.h"

namespace tessera::fsdp {

/// What is said of an optimizer that lays all parameters out as one vector.
std::string why_no_vector();

/// Refuses optimizers that compute with all parameters as one vector, as LBFGS does: each rank would take its part for
/// the whole. They give themselves away just before they add a piece of that vector to a parameter: it is viewed as the
/// parameter. With a single parameter the vector is no longer than its piece, and whatever is viewed as the parameter
/// is refused, unless the optimizer was checked.
/// Thread-safety: of the thread that made it.
class VectorGuard {
 public:
  /// `shards` is what an optimizer steps, but for `num_others` tensors. Requires: `lock` outlives it.
  VectorGuard(const std::vector<at::Tensor>& shards, std::size_t num_others, ShardLock& lock);

  /// The optimizer is known to work element by element.
  void trust_optimizer();

 private:
  class Ear;
  std::shared_ptr<Ear> ear_;
  intercept::Watch watch_;
};

}  // namespace tessera::fsdp
