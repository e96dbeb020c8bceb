#pragma once

#include <tessera/fsdp/fsdp_options.h>
#include <tessera/mesh/ranks.h>
#include <tessera/shard/flat_layout.h>
#include <tessera/shard/tensor_slice.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

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

/// Bytes and counts of one rank, as they are and not as they should be.
struct FsdpStatistics {
  std::uint64_t num_gathers = 0;
  std::uint64_t num_reduce_scatters = 0;
  std::uint64_t gathered_bytes = 0;       ///< now
  std::uint64_t peak_gathered_bytes = 0;  ///< since the start
  std::uint64_t largest_unit_bytes = 0;
  std::uint64_t shard_bytes = 0;  ///< of this rank's parameters, those that stay whole among them
  std::uint64_t full_bytes = 0;   ///< of all parameters
  /// shard_bytes / full_bytes.
  double local_sharding_ratio() const;
  /// What this rank need not hold of the parameters; gradients and optimizer state save as much for each copy.
  std::uint64_t saved_bytes() const { return full_bytes - shard_bytes; }
};

/// A part of a tensor of the model. Its values are one-dimensional, but for a tensor that stays whole and does not lie
/// row by row in memory: that one itself.
struct StateSlice : TensorSlice {
  bool is_buffer = false;  ///< of the model, whole on every rank: rank 0's counts
};

/// What one of the tensors that a rank trains holds of a parameter of the model.
struct ParameterPart {
  std::string name;  ///< of the model's parameter
  Slice slice;       ///< of the whole parameter; empty where this rank holds nothing of it
  Range held;        ///< where in the tensor that is trained
};

/// What gather() makes whole.
struct GatherOptions {
  /// The parameters of this part of the model; null: of all of it. With them come those of their units.
  TORCH_ARG(std::shared_ptr<torch::nn::Module>, module) = nullptr;
  /// What is written to the parameters stays: every rank keeps what it wrote to its own part of them, so write the same
  /// on all. Needs memory for all that is gathered on every rank, also with `shared_copy`.
  TORCH_ARG(bool, write_back) = false;
};

/// Which ranks have the tensors of a full state dict.
enum class FullStateOn { kEveryRank, kRank0 };

/// A model whose parameters lie in shards. A handle: cheap to copy. The model itself is used as before.
class ShardedModel {
 public:
  explicit ShardedModel(std::shared_ptr<fsdp::FsdpState> state);

  /// What to build an optimizer on: this rank's parts, and the parameters that stay whole.
  std::vector<at::Tensor> parameters() const;
  /// The same by name: of the unit or, with `use_orig_params`, of the parameter.
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;
  /// Of each of `parameters()`, in their order: what it holds, and so what a tensor of its shape holds, as those of an
  /// optimizer's state. On every rank the same names in the same order.
  std::vector<std::vector<ParameterPart>> parameter_parts() const;

  /// Backward passes add to gradients without averaging them, as long as the object lives: for all micro-batches of a
  /// step but the last.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<fsdp::FsdpState> state);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<fsdp::FsdpState> state_;
  };
  NoSync no_sync() const;
  /// Only with `reproducible`: the next backward is this rank's micro-batch `index` of the step. Needed when they run
  /// in another order than 0, 1, 2, ...
  void set_micro_batch(std::int64_t index) const;

  /// Parameters are whole as long as the object lives, for code that reads them by pointer. What operators write to
  /// them stays, here as everywhere; what is written by pointer needs `write_back`, and without it is refused by the
  /// next call that uses the model. Meanwhile no optimizer may step. Collective, the beginning and the end.
  class Whole {
   public:
    explicit Whole(std::shared_ptr<fsdp::FsdpState> state, const GatherOptions& options = {});
    ~Whole();
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

   private:
    std::shared_ptr<fsdp::FsdpState> state_;
    std::vector<int> units_;
    bool writes_;
  };
  Whole gather(const GatherOptions& options = {}) const;

  /// Copies of all parameters and buffers by name, whole, on every rank. Collective.
  std::map<std::string, at::Tensor> full_state_dict() const;
  /// The values of a dict as that one, or as one process has it, become the model's. With kRank0 the dicts of other
  /// ranks are not looked at. Throws ConfigError, on every rank, when a name is missing or unknown or a shape differs;
  /// nothing has changed then. Collective.
  void load_full_state_dict(const std::map<std::string, at::Tensor>& state,
                            FullStateOn where = FullStateOn::kEveryRank) const;
  /// This rank's parts, by the names of the parameters, and what is whole on every rank.
  /// Throws ConfigError inside a gather() that writes.
  std::map<std::string, StateSlice> sharded_state_dict() const;
  /// Before those are written to by pointer, as files are read into them; operators that write need no such call.
  /// What was gathered is let go. Throws ConfigError when a `gather()` lives. Blocks: until no rank reads what will
  /// change. Requires: between a backward and the next forward.
  void before_write() const;
  /// Who holds what of each sharded parameter.
  std::vector<RankSlice> shards() const;

  FsdpStatistics statistics() const;
  const std::shared_ptr<fsdp::FsdpState>& state() const { return state_; }

 private:
  std::shared_ptr<fsdp::FsdpState> state_;
};

/// Shards a model that was not modified: go on to call it as before. Collective: over `ranks`.
ShardedModel fully_shard(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks, const FsdpOptions& options = {});
/// Hybrid: shards along `shards`, the same on every rank along `replicas`. Sets the strategy to kHybridShard.
ShardedModel fully_shard(std::shared_ptr<torch::nn::Module> model, const Ranks& shards, const Ranks& replicas,
                         const FsdpOptions& options = {});
template <typename Impl>
ShardedModel fully_shard(const torch::nn::ModuleHolder<Impl>& model, const Ranks& ranks,
                         const FsdpOptions& options = {}) {
  return fully_shard(std::shared_ptr<torch::nn::Module>(model.ptr()), ranks, options);
}

/// As `clip_grad_norm` of a model in one piece, to the bit: the norm is that of all gradients on all ranks. Collective.
double clip_grad_norm(const ShardedModel& model, double max_norm);

}  // namespace tessera
