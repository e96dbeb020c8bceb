#include "train/state/model_tensors.h"

#include <tessera/core/error.h>
#include <tessera/fsdp/fully_sharded.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <utility>

namespace tessera::train {
namespace {

/// Replicas have other values after a forward, and rank 0, whose values count, does not have all parts.
void require_whole(const HeldSlice& buffer) {
  if (buffer.slice.is_whole()) return;
  throw ConfigError("the buffer " + buffer.name + " is " + buffer.slice.text() +
                    ": buffers that were cut are not saved and restored yet. Keep them whole on every rank");
}

void refuse_blocks(const torch::nn::Module& model) {
  for (const auto& entry : model.named_modules()) {
    if (!dynamic_cast<const ShardedBlock*>(entry.value().get())) continue;
    throw ConfigError("the module " + (entry.key().empty() ? model.name() : "\"" + entry.key() + "\"") +
                      " is FullySharded: its parameters are in shards, of which the model itself knows nothing. A "
                      "TrainingState takes the handles of fully_shard() and distribute(), and models in one piece");
  }
}

}  // namespace

ModelTensors tensors_of(const ParallelModel& model) {
  refuse_blocks(model.module());
  ModelTensors found;
  for (const StateSlice& slice : model.state_slices()) {
    found.shapes[slice.name] = slice.slice.shape();
    const HeldSlice held{slice, kModelGroup};
    if (slice.is_buffer) {
      require_whole(held);
      found.buffers.push_back(held);
    } else if (slice.values.numel() > 0 || slice.slice.is_whole()) {
      found.parameters.push_back(held);
    }
  }
  for (TrainedTensor& trained : model.trained()) {
    found.parts[trained.tensor.unsafeGetTensorImpl()] = std::move(trained.parts);
  }
  return found;
}

HeldSlice slice_of(const std::string& group, const std::string& name, const ParameterPart& part,
                   const at::Tensor& tensor) {
  // Not as a row: a tensor in one piece may lie in memory otherwise than row by row.
  if (part.held == Range{0, tensor.numel()}) return {{name, part.slice, tensor.detach()}, group};
  const at::NoGradGuard no_grad;
  return {{name, part.slice, tensor.detach().view({-1}).narrow(0, part.held.start, part.held.size)}, group};
}

}  // namespace tessera::train
