#include "train/state/model_tensors.h"

#include <tessera/core/error.h>
#include <tessera/fsdp/fully_sharded.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/named_tensors.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <unordered_set>
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

ModelTensors tensors_of(const torch::nn::Module& model) {
  refuse_blocks(model);
  ModelTensors found;
  std::unordered_set<const c10::TensorImpl*> buffers;
  for (const at::Tensor& buffer : buffers_of(model).tensors) buffers.insert(buffer.unsafeGetTensorImpl());
  const NamedTensors state = state_of(model);
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const at::Tensor& tensor = state.tensors[i];
    const std::string& name = state.names[i];
    const auto* const key = tensor.unsafeGetTensorImpl();
    const Slice slice = global_slice(tensor);
    found.shapes[name] = slice.shape();
    if (buffers.contains(key)) {
      found.buffers.push_back({{name, slice, tensor.detach()}, kModelGroup});
      require_whole(found.buffers.back());
      continue;
    }
    found.parameters.push_back({{name, slice, tensor.detach()}, kModelGroup});
    found.parts[key] = {{name, slice, {0, tensor.numel()}}};
  }
  return found;
}

ModelTensors tensors_of(const ShardedModel& model) {
  ModelTensors found;
  for (const RankSlice& shard : model.shards()) found.shapes[shard.name] = shard.slice.shape();
  for (const auto& [name, slice] : model.sharded_state_dict()) {
    found.shapes[name] = slice.slice.shape();
    auto& list = slice.is_buffer ? found.buffers : found.parameters;
    list.push_back({slice, kModelGroup});
    if (slice.is_buffer) require_whole(list.back());
  }
  const auto parameters = model.parameters();
  const auto parts = model.parameter_parts();
  for (std::size_t i = 0; i < parameters.size(); ++i) found.parts[parameters[i].unsafeGetTensorImpl()] = parts[i];
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
