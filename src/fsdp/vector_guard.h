#pragma once

#include <tessera/intercept/watch.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera::fsdp {

/// What is said of an optimizer that lays all parameters out as one vector.
std::string why_no_vector();

/// Refuses optimizers that compute with all parameters as one vector, as LBFGS does: each rank would take its part for
/// the whole. They give themselves away by an operator that elementwise optimizers have no use for: a piece of the
/// vector is viewed as a parameter, just before it is added. From then on whoever writes a shard gets an error, until
/// allow(); values stay as they are.
/// Thread-safety: of the thread that made it.
class VectorGuard {
 public:
  explicit VectorGuard(const std::vector<at::Tensor>& shards);

  /// The shards may be written again.
  void allow();

 private:
  class Ear;
  std::shared_ptr<Ear> ear_;
  intercept::Watch watch_;
};

}  // namespace tessera::fsdp
