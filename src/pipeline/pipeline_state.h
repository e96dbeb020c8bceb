#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/pipeline/pipeline_options.h>
#include <tessera/schedule/pipeline_schedule.h>
#include <tessera/shard/model_state.h>
#include <tessera/shard/tree_average.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/chunk_run.h"
#include "pipeline/messages.h"
#include "pipeline/stage_model.h"

namespace tessera::pp {

/// A model on the stages of a pipeline: what one rank has of it, and how it takes steps.
class PipelineState : public shard::ModelState, public std::enable_shared_from_this<PipelineState> {
 public:
  /// `inner`: what cuts the layers; null: nothing.
  PipelineState(std::shared_ptr<StageModel> model, std::shared_ptr<shard::ModelState> inner, Communicator comm,
                PipelineOptions options);

  const std::shared_ptr<torch::nn::Module>& module() const override { return model_->module; }
  std::vector<ModelAxis> axes() const override;
  std::vector<TrainedTensor> trained() const override;
  std::vector<StateSlice> state_slices() const override;
  void settle_gradients() override {
    if (inner_) inner_->settle_gradients();
  }
  void hold(const GatherOptions& options) override;
  bool is_held() const override { return num_holds_ > 0; }
  void require_not_held() const override;
  void before_part_write(std::function<void(const at::Tensor& part)> prepare) override {
    if (inner_) inner_->before_part_write(std::move(prepare));
  }
  void let_go(const GatherOptions& options) noexcept override;
  bool cuts_layers() const override { return true; }
  void refuse_together(const std::exception_ptr& fault) const override;
  void set_outer(std::weak_ptr<ModelState> outer) override { outer_ = std::move(outer); }
  std::shared_ptr<ModelState> outer() const override { return outer_.lock(); }

  /// Collective. The mean of the losses by their weights, the same on every rank.
  at::Tensor run(const PipelineBatch& batch, bool trains);
  bool has_stages() const override { return true; }
  PipelineSchedule schedule(int num_micro_batches) const;
  const std::map<int, double>& stage_seconds() const { return stage_seconds_; }
  PipelineReport report() const;

 private:
  const ForwardPlan& plan_of(const std::vector<at::Tensor>& tensors, bool trains, const ChunkRun::Forward& forward);
  std::vector<const ForwardPlan*> plans_of(const PipelineBatch& batch, bool trains);
  void require_hooks_fit(const std::vector<const ForwardPlan*>& plans) const;
  shard::TreeAverage* tree_average(const std::shared_ptr<ModelState>& outer, int num_micro_batches) const;
  void require_order(const PipelineSchedule& list) const;
  /// `values`: a digest of the batch. `fault`: what this rank refuses to go on for.
  void agree(const PipelineBatch& batch, const PipelineSchedule& list, const std::vector<const ForwardPlan*>& plans,
             bool trains, std::int64_t values, const std::exception_ptr& fault);
  /// The same when the faults of all are known.
  void refuse_together(const at::Tensor& has_fault, const std::exception_ptr& fault) const;

  std::shared_ptr<StageModel> model_;
  std::shared_ptr<ModelState> inner_;
  std::weak_ptr<ModelState> outer_;  // copies or shards of the stages; null: none
  PipelineOptions options_;
  mutable Channels channels_;
  std::map<std::string, ForwardPlan> plans_;  // by the shapes of a micro-batch, and all else that a forward may ask for
  std::vector<ForwardPlan> dynamic_plans_;
  ForwardPlan last_plan_;
  std::map<int, double> stage_seconds_;  // of the last step
  std::int64_t num_steps_ = 0;
  int num_holds_ = 0;
  bool has_failed_ = false;
};

}  // namespace tessera::pp
