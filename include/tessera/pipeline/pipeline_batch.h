#pragma once

#include <tessera/pipeline/micro_batches.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

/// One batch, in micro-batches, and what is to be computed of each: for `Pipeline` and `ParallelizedModel`.
struct PipelineBatch {
  int num_micro_batches = 0;
  std::function<at::Tensor(int)> loss;                  ///< of a micro-batch: runs the model
  std::function<std::vector<at::Tensor>(int)> tensors;  ///< that a micro-batch consists of
  std::vector<double> weights;                          ///< of the micro-batches' losses; any sum
  double loss_scale = 1;                                ///< of the gradients, as GradScaler has it
};

/// The weight of a micro-batch that is asked for nothing else.
struct SampleCount {};

/// How many samples a batch has: the first size of its first tensor that has one; 1 if none has.
template <class Batch>
std::int64_t num_samples_of(const Batch& batch) {
  for (const at::Tensor& one : MicroBatches<Batch>::tensors(batch)) {
    if (one.defined() && one.dim() > 0) return one.size(0);
  }
  return 1;
}

/// `loss(micro)` runs the model; it must live as long as the result. `weight(micro)` is a number of 0 or more.
template <class Micro, class Loss, class Weight>
PipelineBatch make_pipeline_batch(std::vector<Micro> micros, const Loss& loss, const Weight& weight) {
  PipelineBatch batch;
  batch.num_micro_batches = static_cast<int>(micros.size());
  for (const Micro& micro : micros) {
    if constexpr (std::is_same_v<Weight, SampleCount>) {
      batch.weights.push_back(static_cast<double>(num_samples_of(micro)));
    } else {
      batch.weights.push_back(static_cast<double>(weight(micro)));
    }
  }
  auto shared = std::make_shared<const std::vector<Micro>>(std::move(micros));
  batch.loss = [shared, &loss](int i) -> at::Tensor { return loss((*shared)[static_cast<std::size_t>(i)]); };
  batch.tensors = [shared](int i) { return MicroBatches<Micro>::tensors((*shared)[static_cast<std::size_t>(i)]); };
  return batch;
}

}  // namespace tessera
