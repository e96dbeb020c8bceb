#pragma once

#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/comm/communicator.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/offload/offload.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "property/config.h"
#include "property/user.h"
#include "support/temporary_folder.h"

namespace tessera::testing {

/// With other values than rank 0's, which that broadcasts at the start.
NodePtr model_of_rank(std::uint64_t seed, const Config& config, int rank);

/// The ranks of a program: those that share layers are next to each other, and then those that share a batch.
struct RankGroups {
  RankGroups(const Config& config, const Communicator& comm);

  Communicator all;
  Communicator sharing_layers;
  Communicator stages;
  Communicator with_batches;
};

/// Null: each rank has whole layers.
std::optional<TensorParallelModel> cut_layers(std::uint64_t seed, const Config& config, const NodePtr& model,
                                              const RankGroups& groups);

/// What a rank has of the model's parameters, as its handle says.
std::vector<Piece> pieces_of(const ParallelModel& handle, const torch::optim::Optimizer& optimizer);

/// Null: this rank keeps nothing in files.
std::unique_ptr<Offload> put_in_files(const Config& config);
ShardedModel shard_model(const NodePtr& model, const Config& config, const Communicator& ranks,
                         const Offload* offload = nullptr);
/// With the hook of the program's own, if it has one.
DdpOptions ddp_options_of(const Config& config);

/// What is the same for a rank however its model is spread.
class RankTools {
 public:
  explicit RankTools(const RankGroups& groups);

  /// Of the batches.
  int part() const { return with_batches_.rank(); }
  const Communicator& with_batches() const { return with_batches_; }

  double scale() const { return scaler_.current_scale(); }
  bool step_scaled(torch::optim::Optimizer& optimizer);
  void begin_scaling() { scaler_ = new_scaler(); }

  void save(const ParallelModel& model, torch::optim::Optimizer& optimizer);
  bool has_saved() const { return num_saved_ > 0; }
  void load(const ParallelModel& model, torch::optim::Optimizer& optimizer);

  /// Calls that do not match, as a program with a mistake makes them: refused, and the group works as before.
  void mismatch(std::int64_t way) const;
  double sum_in_half(const std::function<double(int rank)>& value) const;

 private:
  void require_group_works(int first) const;
  GradScaler new_scaler() const;
  void make_folder();

  Communicator comm_;
  Communicator with_batches_;
  GradScaler scaler_;
  std::optional<TemporaryFolder> on_disk_;
  std::optional<CheckpointFolder> folder_;
  std::int64_t num_saved_ = 0;
};

}  // namespace tessera::testing
