#pragma once

#include <tessera/core/options.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fsdp_options.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/mesh/three_d_parallelism.h>
#include <tessera/pipeline/pipeline_options.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <torch/arg.h>

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
  /// How many ranks along each axis, and what goes with it. In a TOML file its keys are among these: `tp = 2`. Unlike a
  /// ThreeDParallelismConfig of its own, it takes as many copies as the ranks allow, the model's own layers, a rank's
  /// samples at once, "basic" and "1f1b", and has no limits.
  TORCH_ARG(ThreeDParallelismConfig, layout) = default_layout();
  TORCH_ARG(DataParallelism, data_parallelism) = DataParallelism::kDdp;
  /// Only with `fsdp.strategy` "hybrid_shard": how many ranks hold one copy of the model together. Those of one node,
  /// as a rule.
  TORCH_ARG(int, shard_ranks) = 0;
  /// Only with `tp` above 1: lines of a TensorPlan, "blocks.*.mlp.up: columns".
  TORCH_ARG(std::vector<std::string>, tp_plan) = {};
  /// Modules that are Recomputable compute again in backward instead of keeping what it needs: less memory, about a
  /// third more time. `memory_strategy` needs no such modules.
  TORCH_ARG(bool, recompute) = false;
  TORCH_ARG(TensorParallelOptions, tensor);
  /// Where the model is cut, and more. Its schedule is that of the layout.
  TORCH_ARG(PipelineOptions, pipeline);
  TORCH_ARG(DdpOptions, ddp);
  TORCH_ARG(FsdpOptions, fsdp);

 public:
  static const FieldList<ParallelizeOptions>& fields();
  static ThreeDParallelismConfig default_layout();

  /// Of the layout: copies or shards, ranks that share each layer, pipeline stages.
  int dp() const { return layout_.dp(); }
  int tp() const { return layout_.tp(); }
  int pp() const { return layout_.pp(); }
  ParallelizeOptions& dp(int size) {
    layout_.dp(size);
    return *this;
  }
  ParallelizeOptions& tp(int size) {
    layout_.tp(size);
    return *this;
  }
  ParallelizeOptions& pp(int size) {
    layout_.pp(size);
    return *this;
  }

  /// Shards in groups of `shard_ranks`, and copies of these.
  bool is_hybrid() const {
    return data_parallelism_ == DataParallelism::kFsdp && fsdp_.strategy() == ShardingStrategy::kHybridShard;
  }
  /// Everything that is wrong with them whatever the model, each fault with its fix; empty if nothing is.
  std::vector<std::string> faults(int world_size) const;
};

/// The mesh that these options need: "dp", or "replica" and "shard"; then "tp" and "pp", if they have several ranks, in
/// the order of the layout. Throws ConfigError with all faults of the options at once.
DeviceMesh make_mesh(const World& world, const ParallelizeOptions& options);

/// The ranks that have batches of their own: for samplers, and for sums over a step's batches.
struct BatchRanks {
  int rank = 0;
  int size = 1;
};
/// Along all axes but "tp" and "pp", whose ranks have the same batches.
BatchRanks batch_ranks(const DeviceMesh& mesh);

}  // namespace tessera
