#include <tessera/fsdp/fully_shard.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fsdp/fsdp_state.h"

namespace tessera {
namespace {

/// A tensor that several modules hold has all their names, as in one process.
void add_other_names(const torch::nn::Module& model, std::map<std::string, at::Tensor>& state) {
  std::vector<std::pair<std::string, const c10::TensorImpl*>> names;
  for (const auto& entry : model.named_parameters())
    names.emplace_back(entry.key(), entry.value().unsafeGetTensorImpl());
  for (const auto& entry : model.named_buffers()) names.emplace_back(entry.key(), entry.value().unsafeGetTensorImpl());
  std::unordered_map<const c10::TensorImpl*, at::Tensor> known;
  for (const auto& [name, tensor] : names) {
    if (const auto found = state.find(name); found != state.end()) known.emplace(tensor, found->second);
  }
  for (const auto& [name, tensor] : names) {
    if (const auto found = known.find(tensor); found != known.end()) state.emplace(name, found->second);
  }
}

}  // namespace

std::map<std::string, at::Tensor> ShardedModel::full_state_dict() const {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> state;
  // Unit by unit: all of them at once may be more than a rank can hold.
  for (const auto& unit : state_->units()) {
    const at::Tensor row = unit->whole_values();
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
      state[unit->layout().items()[i].name] = unit->view_of(row, i).clone();
    }
  }
  const NamedTensors& replicated = state_->replicated();
  for (std::size_t i = 0; i < replicated.tensors.size(); ++i) {
    state[replicated.names[i]] = replicated.tensors[i].detach().clone();
  }
  const NamedTensors buffers = state_->buffers();
  std::vector<at::Tensor> copies;
  for (std::size_t i = 0; i < buffers.tensors.size(); ++i) {
    copies.push_back(state[buffers.names[i]] = buffers.tensors[i].clone());
  }
  // As in training, rank 0's count.
  if (state_->ranks().replicas) broadcast_all(*state_->ranks().replicas, copies, 0);
  broadcast_all(state_->ranks().shards, copies, 0);
  add_other_names(state_->model(), state);
  return state;
}

std::map<std::string, StateSlice> ShardedModel::sharded_state_dict() const {
  std::map<std::string, StateSlice> state;
  for (const auto& unit : state_->units()) {
    for (const auto& slice : unit->slices()) {
      if (slice.values.numel() == 0) continue;
      const auto& item = unit->layout().items()[slice.index];
      state[item.name] = {slice.values, slice.start, item.shape};
    }
  }
  const auto add_whole = [&](const NamedTensors& tensors) {
    for (std::size_t i = 0; i < tensors.tensors.size(); ++i) {
      const at::Tensor& tensor = tensors.tensors[i];
      state[tensors.names[i]] = {tensor.detach().reshape({-1}), 0, tensor.sizes().vec()};
    }
  };
  add_whole(state_->replicated());
  add_whole(state_->buffers());
  return state;
}

std::vector<ShardInfo> ShardedModel::shards() const {
  std::vector<ShardInfo> shards;
  for (const auto& unit : state_->units()) {
    const auto of_unit = shards_of(unit->layout(), unit->partition(), unit->ranks().shards.rank());
    shards.insert(shards.end(), of_unit.begin(), of_unit.end());
  }
  return shards;
}

}  // namespace tessera
