#pragma once

#include <tessera/mesh/ranks.h>
#include <tessera/pipeline/pipeline_batch.h>
#include <tessera/pipeline/pipeline_options.h>
#include <tessera/schedule/pipeline_schedule.h>
#include <tessera/shard/parallel_model.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace pp {
class PipelineState;
}  // namespace pp

/// What a pipeline does with a batch.
struct PipelineReport {
  struct Stage {
    int rank = 0;       ///< of the axis
    std::string first;  ///< the first tensor that it has
    std::int64_t num_parameters = 0;
  };
  struct Value {
    int from_stage = 0;  ///< it crosses from there to the next stage
    std::string op;      ///< that made it: "aten::add"
    std::vector<std::int64_t> sizes;
    bool has_gradient = false;
    std::int64_t num_bytes = 0;
  };
  struct Shared {
    std::string name;        ///< of a parameter
    int stage = 0;           ///< that has it
    std::vector<int> ranks;  ///< others that use it: they get it in every step, and send its gradient
  };
  std::vector<Stage> stages;
  std::vector<Value> values;  ///< of one micro-batch, of the batch that came last
  std::vector<Shared> shared;
  std::int64_t num_operators = 0;  ///< of one forward
  /// A table for people.
  std::string text() const;
};

/// A model whose layers lie on several ranks. A handle: cheap to copy.
///
///   auto pipe = tessera::pipeline(model, mesh["pp"], tessera::PipelineOptions().split({"blocks.6"}));
///   auto loss = pipe.step(batch, 8, [&](const auto& micro) { return loss_of(model, micro); });
///   optimizer.step();
///
/// The function is the same on every rank, and so are the batch and the seed of random numbers. It runs several times
/// for each micro-batch: values of other ranks have a shape there and no bytes, and a part of the model is computed in
/// each. So it must have no effects of its own, such as counting.
class Pipeline : public ParallelModel {
 public:
  explicit Pipeline(std::shared_ptr<pp::PipelineState> state);

  /// Divides the batch into micro-batches of nearly equal size along the first dimension, runs forward and backward of
  /// all of them by the schedule, and adds to the gradients of the parameters on this rank what one process would:
  /// those of the mean of the losses, each weighted by the number of its samples. Returns that mean, without a history,
  /// on every rank. Collective. Throws ConfigError where the numbers would not be those of one process.
  template <class Batch, class Loss>
  at::Tensor step(const Batch& batch, int num_micro_batches, const Loss& loss) const {
    return run(make_pipeline_batch(MicroBatches<Batch>::split(batch, num_micro_batches), loss, SampleCount{}), true);
  }
  /// With weights of your own: the number of tokens that count, say. `weight(micro)` is a number of 0 or more.
  template <class Batch, class Loss, class Weight>
  at::Tensor step(const Batch& batch, int num_micro_batches, const Loss& loss, const Weight& weight) const {
    return run(make_pipeline_batch(MicroBatches<Batch>::split(batch, num_micro_batches), loss, weight), true);
  }
  /// Of a batch that is divided already.
  template <class Micro, class Loss, class Weight>
  at::Tensor step_of(const std::vector<Micro>& micros, const Loss& loss, const Weight& weight) const {
    return run(make_pipeline_batch(micros, loss, weight), true);
  }

  /// The mean of the losses without gradients. Collective.
  template <class Batch, class Loss>
  at::Tensor evaluate(const Batch& batch, int num_micro_batches, const Loss& loss) const {
    return run(make_pipeline_batch(MicroBatches<Batch>::split(batch, num_micro_batches), loss, SampleCount{}), false);
  }

  /// For what the functions above do not cover. `trains`: with backward passes.
  at::Tensor run(const PipelineBatch& batch, bool trains) const;

  /// The list that every rank executes.
  PipelineSchedule schedule(int num_micro_batches) const;
  /// Of the batch that came last.
  PipelineReport report() const;
  /// That forward and backward of each stage of this rank took in the last step, without waits.
  std::map<int, double> stage_seconds() const;

 private:
  std::shared_ptr<pp::PipelineState> state_;
};

/// Puts consecutive parts of a model that was written for one device on the ranks of an axis. Each rank keeps the
/// parameters of its own stages; those of a model made under DeferredInit get bytes nowhere else. `model->parameters()`
/// still lists all: those of other ranks have no bytes and get no gradient, so an optimizer may be given all of them.
/// Collective: over `ranks`. Throws ConfigError, with the nearest name, for a cut that does not fit the model.
Pipeline pipeline(const std::shared_ptr<torch::nn::Module>& model, const Ranks& ranks,
                  const PipelineOptions& options = {});
template <class Holder>
  requires requires(const Holder& holder) { std::shared_ptr<torch::nn::Module>(holder.ptr()); }
Pipeline pipeline(const Holder& model, const Ranks& ranks, const PipelineOptions& options = {}) {
  return pipeline(std::shared_ptr<torch::nn::Module>(model.ptr()), ranks, options);
}

}  // namespace tessera
