#pragma once

#include <tessera/fsdp/fsdp_options.h>
#include <tessera/mesh/ranks.h>
#include <tessera/shard/flat_layout.h>
#include <tessera/shard/parallel_model.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace tessera {

namespace fsdp {
class FsdpState;
}  // namespace fsdp

/// Actual bytes and counts of one rank, not expected ones.
struct FsdpStatistics {
  std::uint64_t num_gathers = 0;
  std::uint64_t num_reduce_scatters = 0;
  std::uint64_t gathered_bytes = 0;       ///< now
  std::uint64_t peak_gathered_bytes = 0;  ///< since the start
  std::uint64_t largest_unit_bytes = 0;
  std::uint64_t shard_bytes = 0;  ///< of this rank's parameters, including those that stay whole
  std::uint64_t full_bytes = 0;   ///< of all parameters
  /// shard_bytes / full_bytes.
  double local_sharding_ratio() const;
  /// Bytes of parameters that this rank need not hold. Gradients, and each copy in the optimizer state, save as much.
  std::uint64_t saved_bytes() const { return full_bytes - shard_bytes; }
};

/// Which ranks have the tensors of a full state dict.
enum class FullStateOn { kEveryRank, kRank0 };

/// A model whose parameters lie in shards. As a ParallelModel, its `parameters()` are this rank's parts and the
/// parameters that stay whole. A part has the name of its unit or, with `use_orig_params`, of its parameter.
class ShardedModel : public ParallelModel {
 public:
  explicit ShardedModel(std::shared_ptr<fsdp::FsdpState> state);

  /// Only with `reproducible`: the next backward is this rank's micro-batch `index` of the step. Needed when the
  /// micro-batches run in another order than 0, 1, 2, ...
  void set_micro_batch(std::int64_t index) const;

  /// Copies of all parameters and buffers by name, whole, on every rank. Collective.
  std::map<std::string, at::Tensor> full_state_dict() const;
  /// Loads a dict that full_state_dict() returned, or the state dict of the model in one process. With kRank0 only the
  /// dict of rank 0 is read. Throws ConfigError, on every rank, when a name is missing or unknown or a shape differs;
  /// nothing has changed then. Collective.
  void load_full_state_dict(const std::map<std::string, at::Tensor>& state,
                            FullStateOn where = FullStateOn::kEveryRank) const;
  /// This rank's parts, by the names of the parameters, and the tensors that are whole on every rank.
  /// Throws ConfigError inside a gather() that writes.
  std::map<std::string, StateSlice> sharded_state_dict() const;
  /// Which rank holds which part of each sharded parameter.
  std::vector<RankSlice> shards() const;

  FsdpStatistics statistics() const;
  const std::shared_ptr<fsdp::FsdpState>& state() const { return state_; }

 private:
  std::shared_ptr<fsdp::FsdpState> state_;
};

/// Shards a model. The program goes on to call the model as before. Collective: over `ranks`.
ShardedModel fully_shard(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks, const FsdpOptions& options = {});
/// Hybrid: parameters are sharded along `shards` and replicated along `replicas`. Sets the strategy to kHybridShard.
ShardedModel fully_shard(std::shared_ptr<torch::nn::Module> model, const Ranks& shards, const Ranks& replicas,
                         const FsdpOptions& options = {});
template <typename Impl>
ShardedModel fully_shard(const torch::nn::ModuleHolder<Impl>& model, const Ranks& ranks,
                         const FsdpOptions& options = {}) {
  return fully_shard(std::shared_ptr<torch::nn::Module>(model.ptr()), ranks, options);
}

}  // namespace tessera
