#pragma once

#include <tessera/intercept/custom_node.h>
#include <tessera/intercept/random_state.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/schedule/pipeline_schedule.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/chunk_run.h"
#include "pipeline/messages.h"
#include "pipeline/reproducible_sums.h"
#include "pipeline/stage_model.h"

namespace tessera::pp {

/// Executes this rank's list of a schedule for one batch.
class StepRun {
 public:
  struct Settings {
    bool trains;
    std::size_t receive_ahead;
    bool is_reproducible;
    bool is_shared_further;  ///< parameters may lie in shards, along another axis
    /// Called with the parameters of a stage of this rank whose gradients are all there. Not with those that other
    /// stages use too: their gradients are complete when run() returns.
    std::function<void(const std::vector<at::Tensor>& parameters)> on_complete;
  };
  StepRun(StageModel& model, Channels& channels, const PipelineSchedule& schedule, const PipelineBatch& batch,
          std::vector<const ForwardPlan*> plans, Settings settings);

  ~StepRun();
  StepRun(const StepRun&) = delete;
  StepRun& operator=(const StepRun&) = delete;

  /// The weighted sum of the losses; the same on every rank.
  at::Tensor run();
  /// That forward and backward of each stage of this rank took, without waits.
  const std::map<int, double>& seconds() const { return seconds_; }

 private:
  /// What the forward of a micro-batch through a stage leaves for its backward.
  struct Chunk {
    std::vector<at::Tensor> outputs;    ///< until they have gone to the next stage
    torch::autograd::edge_list begins;  ///< where the gradients of outputs, or of the loss, go
    Shape loss;
    Arrivals arrivals;                                       // of those values that require a gradient
    std::shared_ptr<intercept::DeferredGradients> deferred;  // with halved backwards
  };
  using Place = std::pair<int, int>;  // micro-batch, stage

  std::string in_words(PipelineOperation operation) const;
  std::string rank_in_words(int rank) const;
  void execute(const PipelineOperation& operation);
  void compute(const PipelineOperation& operation);
  void wait_for_outbox();
  void forward(int micro_batch, int stage);
  void backward(int micro_batch, int stage);
  void release_outputs(const Place& place);
  void backward_weight(const Place& place);
  void note_complete(int stage);
  void hand_over(int micro_batch, int stage);
  void hand_back(int micro_batch, int stage);
  void restore_random_state(int micro_batch);
  std::map<std::size_t, std::set<int>> users_of_shared() const;
  void fetch_shared();
  void return_shared();
  void return_parts();
  void require_no_gradients_elsewhere() const;
  std::set<std::size_t> in_parts() const;
  std::vector<int> stages_of(int rank) const;
  at::Tensor shared_gradient(std::size_t place) const;
  static CrossingValue value_of(const StageTensor& one);
  at::Tensor sum_of_losses();
  double share_of(int micro_batch) const;
  const ForwardPlan& plan(int micro_batch) const { return *plans_[static_cast<std::size_t>(micro_batch)]; }
  const std::vector<CrossingValue>& crossing(int micro_batch, int from_stage) const;

  StageModel& model_;
  Channels& channels_;
  const PipelineSchedule& schedule_;
  const PipelineBatch& batch_;
  std::vector<const ForwardPlan*> plans_;
  Settings settings_;
  bool halves_ = false;  // some backwards compute the gradients of inputs alone
  double sum_of_weights_ = 0;
  Inbox inbox_;
  Outbox outbox_;
  std::map<Place, Chunk> chunks_;
  std::map<Place, std::vector<at::Tensor>> values_;     // that have arrived for a stage
  std::map<Place, std::vector<at::Tensor>> gradients_;  // of what a stage has given
  std::map<Place, std::vector<at::Tensor>> returned_;   // of what it got
  std::map<Place, std::shared_ptr<intercept::DeferredGradients>> deferred_;
  std::vector<std::optional<intercept::RandomState>> starts_;  // of the micro-batches' forwards, and behind the last
  at::Tensor loss_;
  std::optional<ReproducibleSums> sums_;  // in reproducible mode
  std::map<int, double> seconds_;
  std::map<int, std::size_t> num_backwards_;  // of each stage, of the micro-batches that are through
};

}  // namespace tessera::pp
