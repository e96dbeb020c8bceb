#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/fsdp/fsdp_options.h>
#include <tessera/shard/flat_layout.h>
#include <tessera/shard/flat_source.h>
#include <tessera/shard/hollow_storage.h>
#include <tessera/shard/stream_order.h>
#include <tessera/shard/tensor_slice.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/guards.h"
#include "fsdp/plan_units.h"

namespace tessera::fsdp {

enum class UnitState { kSharded, kGathering, kGathered };

/// The ranks that hold the parts of a unit, and those that hold the same part.
struct UnitRanks {
  Communicator shards;
  std::optional<Communicator> replicas;

  /// From the first of all ranks. Collective.
  void broadcast(const at::Tensor& tensor) const {
    shards.broadcast(tensor, 0);
    if (replicas) replicas->broadcast(tensor, 0);
  }
  /// Calls `compare` along both axes; it throws ConfigError on all ranks of a group whose ranks differ. Along the
  /// shards another group may agree, so ranks that differ call `tell`, which must make them differ along the replicas
  /// as well. Then all ranks throw. Collective.
  void require_same(const std::function<void(const Communicator&)>& compare,
                    const std::function<void(const std::string& difference)>& tell) const;
  std::int64_t num_ranks() const { return std::int64_t{shards.size()} * (replicas ? replicas->size() : 1); }
};

/// Where gradients of units lie.
struct GradientBuffers {
  BufferPool flat;      ///< those of this rank, until they are averaged
  BufferPool averages;  ///< this rank's part
};

/// Error messages for a parameter that was unfrozen, or given other memory.
std::string refusal_of_unfrozen(const std::string& parameter, int world_rank);
std::string refusal_of_other_memory(const std::string& parameter, int world_rank);

/// Parameters that are gathered together. They are views of one flat parameter, which has bytes only while it is
/// gathered. This rank always keeps its part, the shard, which an optimizer updates.
class Unit {
 public:
  /// The parameters become views of the flat parameter; their values lie in the shards from now on. With `init_sync`
  /// all ranks take the values of rank 0. Collective.
  Unit(const UnitPlan& plan, int number, UnitRanks ranks, const UnitPrecision& precision, FlatSources& sources,
       std::shared_ptr<ThreadGate> gate, GradientBuffers gradients, bool init_sync);

  const std::string& name() const { return name_; }
  UnitState state() const { return state_; }
  bool is_trained() const { return is_trained_; }
  /// There is only one part, and its dtype is that of the computation: the flat parameter is the shard.
  bool is_whole() const {
    return partition_.num_parts() == 1 && compute_dtype_ == dtype_ && source_->is_whole_itself();
  }
  const FlatLayout& layout() const { return layout_; }
  const Partition& partition() const { return partition_; }
  const UnitRanks& ranks() const { return ranks_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const HollowStorage& storage() const { return storage_; }
  /// This rank's part of the flat parameter.
  const at::Tensor& shard() const { return shard_; }
  /// What this rank holds of a parameter, and where in the shard; empty if it holds nothing.
  Slice slice_of(std::size_t index) const;
  Range place_in_shard(std::size_t index) const;
  /// One for each parameter: leaf tensors in the shard's memory.
  std::vector<TensorSlice> slices() const;
  /// From now on gradients are those of `slices`, instead of the shard's.
  void train_slices();
  const std::vector<TensorSlice>& trained_slices() const { return trained_slices_; }
  /// What an optimizer updates: the slices that are trained, or the shard.
  std::vector<at::Tensor> trained() const;

  /// Collective: over the shards. The parameters hold their values when finish_gather() returns.
  void start_gather();
  void finish_gather();
  /// Releases the bytes, or keeps them aside until the unit is gathered again. Waits for a gather under way. Does
  /// nothing for a unit in shards.
  void release(bool keep_bytes);
  /// They will probably be used soon.
  void expect() { source_->expect(); }
  /// A kernel is about to use the parameters.
  void note_use() { stream_uses_.note(); }
  /// Called before the shard is written to. Blocks: until no rank reads the memory that would change.
  void before_write() { source_->before_write(); }
  void after_write() { source_->after_write(); }

  /// An operator, or the program inside gather(), is about to write to parameters on every rank; each rank writes to a
  /// private copy. Requires: kGathered. Throws ConfigError if the flat parameter has another dtype than the shard.
  void begin_write();
  bool is_written() const { return is_written_; }
  /// Copies this rank's part of the written values to the shard, and releases the unit. Collective.
  void end_write();
  /// Remembers a fingerprint of this rank's part of the flat parameter. Requires: kGathered.
  void seal();
  /// Throws ConfigError when the part has changed since seal(), by a write that was not announced. Forgets the
  /// fingerprint.
  void require_sealed();
  /// A new flat parameter with the exact values of all parts. Collective.
  at::Tensor whole_values() const;
  /// A new flat parameter whose parameters are uninitialised.
  at::Tensor empty_flat() const;
  /// The shard's values become those of such a flat parameter.
  void set_values(const at::Tensor& flat);
  /// A parameter within such a flat parameter.
  at::Tensor view_of(const at::Tensor& flat, std::size_t index) const;
  /// Throws ConfigError for a parameter that was given other memory, as torch::load does.
  void require_own_memory() const;
  /// Throws ConfigError for one that was frozen though the optimizer knows the unit as one vector.
  void require_none_frozen() const;
  /// Both, and throws also for a parameter that was unfrozen.
  void require_unchanged() const;
  /// As explain(). Parameters that were given other memory lose it, and reading them throws the same error.
  void refuse(const std::string& why);
  /// Releases the bytes; a kernel that reads the parameters from now on throws `why`.
  void explain(const std::string& why);
  /// Restores the usual message for parameters in shards, after refuse() or explain().
  void explain_shards() {
    if (state_ == UnitState::kSharded) storage_.explain(why_sharded_);
  }

  /// Adds to the gradient that earlier passes have left.
  void take_gradient(std::size_t index, const at::Tensor& whole_gradient);
  /// The bytes of all gradients of the unit, before they are averaged.
  std::int64_t gradient_bytes() const { return gradients_.num_bytes(); }
  bool has_unreduced_gradients() const { return gradients_.has_bytes() && !reduced_.defined(); }
  /// Collective. Parameters without gradient count as zero.
  void start_reduce();
  /// Puts or adds the average to `shard().grad()`; with trained slices, see hand_out_gradients().
  void finish_reduce();
  /// Takes this rank's part of an average that was computed elsewhere, and puts it where finish_reduce() puts its own.
  void give_gradient(const at::Tensor& average);
  /// Drops the gradients that have not reached `grad()` yet.
  void drop_gradients();
  /// Whether this rank contributed a gradient of the parameter to the averages since the last hand_out_gradients().
  bool had_gradient(std::size_t index) const { return had_[index]; }
  /// Adds the averages to the gradients of the trained slices, for parameters whose `had` is not 0: some rank had a
  /// gradient. The others keep the gradient that they have, as a rule none: weight decay would act on zeros.
  void hand_out_gradients(const float* had);
  /// Sets `grad()` of the model's parameters to a mark. Reading it throws an error that says where gradients are.
  void mark_gradients();
  /// If a mark was cleared, as model->zero_grad() does, drops the gradients that it stands for.
  void drop_cleared_gradients();
  /// Throws ConfigError if a mark was cleared but an optimizer would still find the gradient.
  void require_none_cleared() const;

 private:
  void clear_gaps(const at::Tensor& flat) const;
  at::Tensor memory_for_average();
  void take_average(const at::Tensor& average);
  at::Tensor my_part() const { return storage_.flat().narrow(0, mine_.start, mine_.size); }
  void give_whole();
  void adopt_values(bool init_sync);
  /// Whether the parameter still has its bytes in the tensor that it had them in.
  bool is_held(std::size_t index) const;

  std::string name_;
  std::string why_sharded_;
  UnitRanks ranks_;
  GradientBuffers gradient_buffers_;
  bool is_trained_;
  at::Device device_;
  at::ScalarType dtype_;           // of the shard
  at::ScalarType compute_dtype_;   // of the flat parameter
  at::ScalarType gradient_dtype_;  // in which gradients are averaged
  bool keeps_gradient_dtype_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> held_;  // with their bytes: the parts of those that tensor parallelism has cut
  FlatLayout layout_;
  Partition partition_;
  Range mine_;
  HollowStorage storage_;
  StreamUses stream_uses_;
  HollowStorage gradient_mark_;
  at::Tensor shard_;
  std::unique_ptr<FlatSource> source_;  // behind the shard, which it may still read: destroyed before it
  std::shared_ptr<ThreadGate> gate_;
  std::vector<TensorSlice> trained_slices_;
  UnitState state_ = UnitState::kSharded;
  bool is_written_ = false;
  std::optional<std::uint64_t> seal_;
  Work reduce_;

  HollowStorage gradients_;  // all of this rank's, unreduced
  bool is_marked_ = false;
  std::vector<bool> came_;  // of each parameter: gradients_ holds its gradient
  at::Tensor kept_;         // the memory of the last average, for the next: fresh pages take time to fault in
  at::Tensor reduced_;      // this rank's part of their average
  at::Tensor averaged_;     // averages that are not handed out to slices yet
  std::vector<bool> had_;
};

}  // namespace tessera::fsdp
