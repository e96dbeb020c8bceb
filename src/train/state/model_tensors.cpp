#include "train/state/model_tensors.h"

#include <tessera/core/error.h>
#include <tessera/fsdp/fully_sharded.h>
#include <tessera/shard/named_tensors.h>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

namespace tessera::train {
namespace {

HeldSlice whole_slice(const std::string& group, const std::string& name, const at::Tensor& tensor) {
  const auto shape = tensor.sizes().vec();
  return {group, name, shape, SlicePlace::whole(shape), tensor.detach()};
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
    found.shapes[name] = tensor.sizes().vec();
    if (buffers.contains(key)) {
      found.buffers.push_back(whole_slice(kModelGroup, name, tensor));
      continue;
    }
    found.parameters.push_back(whole_slice(kModelGroup, name, tensor));
    found.parts[key] = {{name, tensor.sizes().vec(), 0, {0, tensor.numel()}}};
  }
  return found;
}

ModelTensors tensors_of(const ShardedModel& model) {
  ModelTensors found;
  for (const ShardInfo& shard : model.shards()) found.shapes[shard.name] = shard.original_shape;
  for (const auto& [name, slice] : model.sharded_state_dict()) {
    found.shapes[name] = slice.shape;
    const auto place = SlicePlace::stretch(c10::multiply_integers(slice.shape), slice.start, slice.values.numel());
    auto& list = slice.is_buffer ? found.buffers : found.parameters;
    list.push_back({kModelGroup, name, slice.shape, place, slice.values});
  }
  const auto parameters = model.parameters();
  const auto parts = model.parameter_parts();
  for (std::size_t i = 0; i < parameters.size(); ++i) found.parts[parameters[i].unsafeGetTensorImpl()] = parts[i];
  return found;
}

HeldSlice slice_of(const std::string& group, const std::string& name, const ParameterPart& part,
                   const at::Tensor& tensor) {
  const auto num_elements = c10::multiply_integers(part.shape);
  // Not as a row: a tensor in one piece may lie in memory otherwise than row by row.
  if (tensor.sizes().vec() == part.shape && part.held.size == num_elements) return whole_slice(group, name, tensor);
  const at::NoGradGuard no_grad;
  return {group, name, part.shape, SlicePlace::stretch(num_elements, part.start, part.held.size),
          tensor.detach().view({-1}).narrow(0, part.held.start, part.held.size)};
}

}  // namespace tessera::train
