#pragma once

#include <tessera/mesh/device_mesh.h>
#include <tessera/mesh/three_d_parallelism.h>
#include <tessera/train/parallelize_options.h>
#include <tessera/train/parallelized_model.h>

#include <memory>

namespace tessera {

/// Turns an unmodified model into one that the ranks of the mesh train together. Axes by name: "dp", or "replica" and
/// "shard" for hybrid sharding, "tp" and "pp". Build the optimizer on the `parameters()` of the result. Give all ranks
/// along "tp" and "pp" the same batches: batch_ranks() are the others.
/// Collective: over the mesh. Throws ConfigError, on every rank, for options that cannot be met, such as an axis along
/// which nothing would be shared.
ParallelizedModel parallelize(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                              const ParallelizeOptions& options = {});
/// The same for a layout alone; with `tp` above 1 give the plan in ParallelizeOptions.
inline ParallelizedModel parallelize(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                                     const ThreeDParallelismConfig& config) {
  return parallelize(model, mesh, ParallelizeOptions().layout(config));
}

/// As above for the holders that TORCH_MODULE makes.
template <class Holder>
  requires requires(const Holder& holder) { std::shared_ptr<torch::nn::Module>(holder.ptr()); }
ParallelizedModel parallelize(const Holder& model, const DeviceMesh& mesh, const ParallelizeOptions& options = {}) {
  return parallelize(std::shared_ptr<torch::nn::Module>(model.ptr()), mesh, options);
}
template <class Holder>
  requires requires(const Holder& holder) { std::shared_ptr<torch::nn::Module>(holder.ptr()); }
ParallelizedModel parallelize(const Holder& model, const DeviceMesh& mesh, const ThreeDParallelismConfig& config) {
  return parallelize(std::shared_ptr<torch::nn::Module>(model.ptr()), mesh, config);
}

}  // namespace tessera
