#pragma once

#include <tessera/intercept/acting_tensor.h>
#include <tessera/shard/slice.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "pipeline/ghost_shapes.h"

namespace tessera::pp {

/// A parameter or buffer of the model, and the stage that has it.
struct StageTensor {
  std::string name;
  at::Tensor tensor;
  int stage = 0;
  bool is_buffer = false;
  /// Of a buffer: operators of the forward write to it. Others are the same on every rank, and so is what is computed
  /// from them alone.
  bool is_written = false;
  /// What the rank that has it holds of it, as a plain tensor: all, or the part that tensor parallelism has left.
  std::vector<std::int64_t> held_sizes{};
  std::vector<std::int64_t> held_strides{};
  Slice slice{};            ///< of the whole tensor: those elements
  std::set<int> readers{};  ///< stages whose operators take it, or what is computed from it, as far as it is known
};

/// Note [Stages and values]
/// Every rank runs all of the user's forward. A value belongs to a stage: that of an operator's result is the greatest
/// of its arguments', and a parameter's is that of its module. All ranks come to the same stages, since these follow
/// from the program alone. A rank computes the values of one stage at a time; the others are ghosts there, with a shape
/// and no bytes. Where an operator takes a value of an earlier stage, the value crosses from stage to stage, once.
///
/// What all runs of a model's forward share on one rank.
struct StageModel : std::enable_shared_from_this<StageModel> {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<StageTensor> tensors;
  std::vector<int> rank_of_stage;
  int rank = 0;
  int world_rank = 0;
  at::Device device{at::kCPU};  ///< of the parameters
  GhostShapes shapes;
  /// While a step is under way: copies of parameters of other ranks that this one uses, by their places.
  std::map<std::size_t, at::Tensor> shared;
  int num_acting = 0;  ///< objects of ActingModel that live

  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  bool is_here(int stage) const { return rank_of_stage[static_cast<std::size_t>(stage)] == rank; }
  std::string where() const { return " (rank " + std::to_string(world_rank) + ")"; }
};

/// What a rank has of a value.
enum class Bytes {
  kNone,      ///< its shape
  kArrived,   ///< it has come from the stage before
  kComputed,  ///< its history too
};

/// Tensors that share memory.
struct Aliases : c10::intrusive_ptr_target {
  int last_reader = -1;      ///< the last stage whose operators have taken one of them
  bool has_moved = false;    ///< a later stage has written to one of them, which is another value since
  bool is_of_model = false;  ///< a parameter or a buffer is one of them
};

/// What is known of a value of the forward, or of a tensor of the model.
class StageData : public intercept::ActingData {
 public:
  /// A value of a run.
  StageData(const StageModel& model, int stage, std::int64_t value, std::uint64_t run, Bytes bytes,
            c10::intrusive_ptr<Aliases> aliases, std::vector<std::size_t> parameters = {}, bool is_of_function = false);
  /// The tensor at this place of `model.tensors`.
  StageData(const StageModel& model, std::size_t place);

  /// Requires: is_alive().
  const StageModel& model() const { return *model_; }
  /// Whether the pipeline that it belongs to still is.
  bool is_alive() const { return !alive_.expired(); }
  int stage() const { return stage_; }
  /// In the order in which the forward makes them, the same on every rank.
  std::int64_t value() const { return value_; }
  std::uint64_t run() const { return run_; }
  /// Whether this rank has its bytes.
  bool is_here() const { return bytes_ != Bytes::kNone; }
  Bytes bytes() const { return bytes_; }
  bool is_of_model() const { return run_ == 0; }
  /// Requires: is_of_model().
  std::size_t place() const { return static_cast<std::size_t>(value_); }
  /// Note [Values of parameters]
  /// What is computed from parameters alone, such as a weight turned around, does not cross: each rank that uses it has
  /// the parameters and computes it. These are their places, in order; of a parameter itself its own.
  const std::vector<std::size_t>& parameters() const { return parameters_; }
  bool is_of_parameters() const { return !parameters_.empty(); }
  /// Whether a custom function had part in that.
  bool is_of_function() const { return is_of_function_; }
  Aliases& aliases() const { return *aliases_; }
  const c10::intrusive_ptr<Aliases>& shared_aliases() const { return aliases_; }

 private:
  const StageModel* model_;
  std::weak_ptr<const StageModel> alive_;
  int stage_;
  std::int64_t value_;
  std::uint64_t run_;
  Bytes bytes_;
  c10::intrusive_ptr<Aliases> aliases_;
  std::vector<std::size_t> parameters_;
  bool is_of_function_;
};
using StageDataPtr = c10::intrusive_ptr<StageData>;

/// The kind of all tensors of stages.
const intercept::ActingKind& stage_kind();
/// Null for other tensors.
StageDataPtr stage_data(const at::Tensor& tensor);

/// While one lives, the tensors of the model act on this rank. Those that lie on other ranks always do.
class ActingModel {
 public:
  explicit ActingModel(StageModel& model);
  ~ActingModel();
  ActingModel(const ActingModel&) = delete;
  ActingModel& operator=(const ActingModel&) = delete;

 private:
  StageModel& model_;
};

/// Takes the bytes of a tensor away that another rank has; reading it is refused from then on.
void send_away(const StageModel& model, std::size_t place);
/// The reverse. `held`: what the rank holds that has it.
void bring_back(const StageTensor& tensor, const at::Tensor& held);
/// New memory for what the rank holds that has it.
at::Tensor memory_for(const StageTensor& tensor);
/// A tensor with these bytes that acts as the tensor itself does inside its stage: cut, if tensor parallelism cuts it.
at::Tensor as_held(const StageTensor& tensor, const at::Tensor& held);

}  // namespace tessera::pp
