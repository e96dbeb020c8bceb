#pragma once

#include <tessera/pipeline/micro_batches.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/pipeline/pipeline_batch.h>
#include <tessera/recompute/save_memory.h>
#include <tessera/shard/parallel_model.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

namespace tessera {

struct ParallelizedState;

/// A model that ranks share along any number of axes, and one way to take steps for all of them:
///
///   auto parallel = tessera::parallelize(model, mesh, options);
///   torch::optim::AdamW optimizer(parallel.parameters());
///   auto loss = parallel.step(batch, [&](const auto& micro) { return loss_of(model, micro); });
///   tessera::clip_grad_norm(parallel, 1.0);
///   optimizer.step();
///
/// Without a pipeline a program may also call the model and `backward()` by itself, as with distribute(). A
/// `memory_strategy` ends with the last copy of this handle.
class ParallelizedModel : public ParallelModel {
 public:
  ParallelizedModel(const ParallelModel& model, std::shared_ptr<const ParallelizedState> state);

  /// Divides this rank's batch into micro-batches of `micro_batch_size` samples at most, runs forward and backward of
  /// all of them, and adds to the gradients those of the mean of the losses over all ranks, each loss weighted by the
  /// number of its samples. Returns that mean, without a history, on every rank. Gradients are multiplied by
  /// `loss_scale`, as GradScaler has it. `loss(micro)` is called once for each micro-batch, or several times with a
  /// pipeline. Ranks along "tp" and "pp" have the same batch, the others their own, of as many micro-batches.
  /// Collective. Throws ConfigError where the numbers would not be those of one process.
  template <class Batch, class Loss>
  at::Tensor step(const Batch& batch, const Loss& loss, double loss_scale = 1) const {
    return run(divided(batch, loss, SampleCount{}), true, loss_scale);
  }
  /// With weights of your own: the number of tokens that count, say. `weight(micro)` is a number of 0 or more.
  template <class Batch, class Loss, class Weight>
    requires(!std::is_arithmetic_v<Weight>)
  at::Tensor step(const Batch& batch, const Loss& loss, const Weight& weight, double loss_scale = 1) const {
    return run(divided(batch, loss, weight), true, loss_scale);
  }

  /// The mean of the losses without gradients. Collective.
  template <class Batch, class Loss>
  at::Tensor evaluate(const Batch& batch, const Loss& loss) const {
    return run(divided(batch, loss, SampleCount{}), false, 1);
  }
  template <class Batch, class Loss, class Weight>
  at::Tensor evaluate(const Batch& batch, const Loss& loss, const Weight& weight) const {
    return run(divided(batch, loss, weight), false, 1);
  }

  /// For a batch that is divided already.
  at::Tensor run(PipelineBatch batch, bool trains, double loss_scale = 1) const;

  /// Of so many samples of a rank.
  int num_micro_batches(std::int64_t num_samples) const;
  /// Its stages; none with one stage.
  const std::optional<Pipeline>& pipeline() const;
  /// What `memory_strategy` keeps of this rank's activations.
  SavedMemoryReport saved_memory() const;

 private:
  template <class Batch, class Loss, class Weight>
  PipelineBatch divided(const Batch& batch, const Loss& loss, const Weight& weight) const {
    const int num_micros = num_micro_batches(num_samples_of(batch));
    return make_pipeline_batch(MicroBatches<Batch>::split(batch, num_micros), loss, weight);
  }

  at::Tensor run_alone(const PipelineBatch& batch, bool trains) const;

  std::shared_ptr<const ParallelizedState> shared_;
};

}  // namespace tessera
