#pragma once

#include <tessera/core/options.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fsdp_options.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/shard/parallel_model.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <torch/arg.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// How ranks share a model whose batches they divide.
enum class DataParallelism {
  kDdp,   ///< each has all of it; gradients are averaged
  kFsdp,  ///< each has a part of it, as `fsdp.strategy` says
};

/// How a model is to be trained on many ranks: for programs that choose it by a setting.
struct ParallelizeOptions {
  /// Layers compute again in backward instead of keeping what it needs: less memory, about a third more time. For
  /// modules that can (see Recomputable).
  TORCH_ARG(bool, recompute) = false;
  TORCH_ARG(DataParallelism, data_parallelism) = DataParallelism::kDdp;
  /// Only with `fsdp.strategy` "hybrid_shard": how many ranks hold one copy of the model together. Those of one node,
  /// as a rule.
  TORCH_ARG(int, shard_ranks) = 0;
  /// How many ranks share each layer, as `tp_plan` says; the others have other batches. Keep it inside a node.
  TORCH_ARG(int, tp) = 1;
  /// Only with `tp` above 1: lines of a TensorPlan, "blocks.*.mlp.up: columns".
  TORCH_ARG(std::vector<std::string>, tp_plan) = {};
  TORCH_ARG(TensorParallelOptions, tensor);
  TORCH_ARG(DdpOptions, ddp);
  TORCH_ARG(FsdpOptions, fsdp);

 public:
  static const FieldList<ParallelizeOptions>& fields();
};

/// The mesh that these options need: "dp", or "replica" and "shard"; then "tp", if layers are shared. Throws
/// ConfigError when the ranks cannot be divided so.
DeviceMesh make_mesh(const World& world, const ParallelizeOptions& options);

/// Turns an unmodified model into one that the ranks of the mesh train together. Axes by name: "dp", or "replica" and
/// "shard" for hybrid sharding, and "tp". Build the optimizer on the `parameters()` of the result. Give all ranks along
/// "tp" the same batches: batch_ranks() are the others.
/// Collective: over the mesh. Throws ConfigError, on every rank, for options that cannot be met, such as an axis along
/// which nothing would be shared.
ParallelModel parallelize(const std::shared_ptr<torch::nn::Module>& model, const DeviceMesh& mesh,
                          const ParallelizeOptions& options = {});

/// The ranks that have batches of their own: for samplers, and for sums over a step's batches.
struct BatchRanks {
  int rank = 0;
  int size = 1;
};
BatchRanks batch_ranks(const DeviceMesh& mesh);

/// As above for the holders that TORCH_MODULE makes.
template <class Holder>
  requires requires(const Holder& holder) { std::shared_ptr<torch::nn::Module>(holder.ptr()); }
ParallelModel parallelize(const Holder& model, const DeviceMesh& mesh, const ParallelizeOptions& options = {}) {
  return parallelize(std::shared_ptr<torch::nn::Module>(model.ptr()), mesh, options);
}

}  // namespace tessera
