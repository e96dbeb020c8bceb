#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/fsdp/fsdp_options.h>
#include <tessera/shard/flat_layout.h>
#include <tessera/shard/hollow_storage.h>
#include <tessera/shard/row_source.h>
#include <tessera/shard/tensor_slice.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan_units.h"
#include "fsdp/thread_gate.h"

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
  /// `compare` along both axes, which throws ConfigError on all ranks of a group that differ. Ranks of other shards may
  /// agree among themselves: who differs calls `tell` before they compare along the replicas, so that they hear of it.
  /// Collective.
  void require_same(const std::function<void(const Communicator&)>& compare,
                    const std::function<void(const std::string& difference)>& tell) const;
  std::int64_t num_ranks() const { return std::int64_t{shards.size()} * (replicas ? replicas->size() : 1); }
};

/// Where gradients of units lie.
struct GradientBuffers {
  BufferPool rows;      ///< those of this rank, until they are averaged
  BufferPool averages;  ///< this rank's part
};

/// What is said of a parameter that was unfrozen.
std::string refusal_of_unfrozen(const std::string& parameter, int world_rank);

/// Parameters that are gathered together. They are views of one row of elements whose bytes come and go; this rank
/// keeps its part of the row, which is what an optimizer updates.
class Unit {
 public:
  /// The parameters become views of the row, which holds their values in shards from now on. With `init_sync` all ranks
  /// take those of rank 0. Collective.
  Unit(const UnitPlan& plan, int number, UnitRanks ranks, const UnitPrecision& precision, RowSources& sources,
       std::shared_ptr<ThreadGate> gate, GradientBuffers gradients, bool init_sync);

  const std::string& name() const { return name_; }
  UnitState state() const { return state_; }
  bool is_trained() const { return is_trained_; }
  /// Nobody else holds a part, and it is computed with as it is: the row is the shard.
  bool is_whole() const { return partition_.num_parts() == 1 && row_dtype_ == dtype_; }
  const FlatLayout& layout() const { return layout_; }
  const Partition& partition() const { return partition_; }
  const UnitRanks& ranks() const { return ranks_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const HollowStorage& storage() const { return storage_; }
  /// This rank's part of the row.
  const at::Tensor& shard() const { return shard_; }
  /// What this rank holds of a parameter, and where in the shard; empty if nothing.
  Slice slice_of(std::size_t index) const;
  Range place_in_shard(std::size_t index) const;
  /// One for each parameter, in the shard's memory, leaves of their own.
  std::vector<TensorSlice> slices() const;
  /// From now on gradients are those of `slices`, instead of the shard's.
  void train_slices();
  const std::vector<TensorSlice>& trained_slices() const { return trained_slices_; }
  /// What an optimizer updates: the slices that are trained, or the shard.
  std::vector<at::Tensor> trained() const;

  /// Collective: over the shards. The parameters hold their values when finish_gather() returns.
  void start_gather();
  void finish_gather();
  /// The bytes go; or are kept aside until the unit is gathered again. Requires: kGathered.
  void release(bool keep_bytes);
  /// Called before the shard is written to. Blocks: until no rank reads what would change.
  void before_write() { source_->before_write(); }
  void after_write() { source_->after_write(); }

  /// An operator is about to write to parameters, or somebody else is: on every rank, each on a row of its own.
  /// Requires: kGathered. Throws ConfigError where a row lacks bits of the shard.
  void begin_write();
  bool is_written() const { return is_written_; }
  /// This rank's part of what was written is in the shard afterwards, and the unit is in shards. Collective.
  void end_write();
  /// Remembers the row as it is, `all` of it or this rank's part. Requires: kGathered.
  void seal(bool all);
  /// Throws ConfigError when that is not what it was, though nobody said that he would write. Forgets it.
  void require_sealed();
  /// A new row with the exact values of all parts. Collective.
  at::Tensor whole_values() const;
  /// A new row whose parameters are uninitialised.
  at::Tensor empty_row() const;
  /// The shard's values become those of such a row.
  void set_values(const at::Tensor& row);
  /// A parameter within such a row.
  at::Tensor view_of(const at::Tensor& row, std::size_t index) const;
  /// Throws ConfigError for a parameter that somebody gave other memory, as torch::load does.
  void require_own_memory() const;
  /// The same, and for one that somebody froze or unfroze.
  void require_unchanged() const;
  /// Throws ConfigError for a parameter whose values somebody changed: its shards know nothing of it.
  void require_unwritten() const;
  /// As explain(); parameters that were given other memory lose it, and say the same.
  void refuse(const std::string& why);
  /// What a kernel will say that reads the parameters though they could not be gathered.
  void explain(const std::string& why);
  /// As before refuse() and explain().
  void explain_shards() {
    if (state_ == UnitState::kSharded) storage_.explain(why_sharded_);
  }

  /// Adds to what earlier passes have left.
  void take_gradient(std::size_t index, const at::Tensor& gradient);
  /// Of all of them, before they are averaged.
  std::int64_t gradient_bytes() const { return gradients_.num_bytes(); }
  bool has_unreduced_gradients() const { return gradients_.has_bytes() && !reduced_.defined(); }
  /// Collective. Parameters without gradient count as zero.
  void start_reduce();
  /// The average is in, or was added to, `shard().grad()` afterwards; with trained slices, see hand_out_gradients().
  void finish_reduce();
  /// This rank's part of an average that somebody else made: goes where finish_reduce() puts its own.
  void give_gradient(const at::Tensor& average);
  /// Forgets what has not come to `grad()` yet.
  void drop_gradients();
  /// Whether this rank had a gradient of the parameter in what was averaged since hand_out_gradients().
  bool had_gradient(std::size_t index) const { return had_[index]; }
  /// Adds the averages to the gradients of the trained slices: of parameters for which `had` is not 0 on some rank. The
  /// others keep what they have, as a rule nothing: weight decay would act on zeros.
  void hand_out_gradients(const float* had);
  /// `grad()` of the model's parameters says, to whoever reads it, where gradients are.
  void mark_gradients();
  /// Who has cleared that, as model->zero_grad() does, has cleared the gradients it stands for.
  void drop_cleared_gradients();
  /// Throws ConfigError for such gradients that an optimizer would still find.
  void require_none_cleared() const;

 private:
  void clear_gaps(const at::Tensor& row) const;
  at::Tensor memory_for_average();
  at::Tensor my_part() const { return storage_.row().narrow(0, mine_.start, mine_.size); }
  void give_whole();
  void note_versions();
  void adopt_values(const UnitPlan& plan, bool init_sync);

  std::string name_;
  std::string why_sharded_;
  UnitRanks ranks_;
  GradientBuffers gradient_buffers_;
  bool is_trained_;
  at::Device device_;
  at::ScalarType dtype_;           // of the shard
  at::ScalarType row_dtype_;       // of what is computed with
  at::ScalarType gradient_dtype_;  // of what is averaged
  bool keeps_gradient_dtype_;
  std::vector<at::Tensor> parameters_;
  FlatLayout layout_;
  Partition partition_;
  Range mine_;
  HollowStorage storage_;
  HollowStorage gradient_mark_;
  std::unique_ptr<RowSource> source_;
  std::shared_ptr<ThreadGate> gate_;
  at::Tensor shard_;
  std::vector<TensorSlice> trained_slices_;
  std::vector<std::int64_t> versions_;  // of the parameters: autograd counts writes
  UnitState state_ = UnitState::kSharded;
  bool is_written_ = false;
  std::optional<std::uint64_t> seal_;
  at::Tensor sealed_;  // the row, or this rank's part of it
  Work reduce_;

  HollowStorage gradients_;  // all of this rank's, unreduced
  bool is_marked_ = false;
  std::vector<bool> came_;  // which of them are there
  at::Tensor kept_;         // the memory of the last average, for the next: fresh pages take time to fault in
  at::Tensor reduced_;      // this rank's part of their average
  at::Tensor averaged_;     // what was averaged and is to be handed out to slices
  std::vector<bool> had_;
};

}  // namespace tessera::fsdp
