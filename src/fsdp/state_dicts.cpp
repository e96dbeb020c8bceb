#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/shard/global_slice.h>
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

/// In a row where it lies so; else as it is: a copy would be taken for the tensor itself, and what is written to it
/// lost.
at::Tensor values_of(const at::Tensor& whole) {
  return whole.is_contiguous() ? whole.detach().view({-1}) : whole.detach();
}

}  // namespace

std::map<std::string, at::Tensor> ShardedModel::full_state_dict() const {
  const at::NoGradGuard no_grad;
  state_->require_uncut("full_state_dict()");
  std::map<std::string, at::Tensor> state;
  for (const auto& unit : state_->units()) unit->require_own_memory();
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
    unit->require_own_memory();
    if (unit->is_written()) {
      throw ConfigError("the slices of this model are asked for while gather() holds it to be written to (rank " +
                        std::to_string(state_->ranks().shards.world_rank()) +
                        "): they get what was written when that ends");
    }
    for (const TensorSlice& slice : unit->slices()) {
      if (slice.values.numel() > 0) state[slice.name] = {slice};
    }
  }
  const auto add_whole = [&](const NamedTensors& tensors, bool are_buffers) {
    for (std::size_t i = 0; i < tensors.tensors.size(); ++i) {
      const at::Tensor& tensor = tensors.tensors[i];
      state[tensors.names[i]] = {{tensors.names[i], global_slice(tensor), values_of(tensor)}, are_buffers};
    }
  };
  add_whole(state_->replicated(), false);
  add_whole(state_->buffers(), true);
  return state;
}

std::vector<std::vector<ParameterPart>> ShardedModel::parameter_parts() const {
  std::vector<std::vector<ParameterPart>> parts;
  for (const auto& unit : state_->units()) {
    if (!unit->is_trained()) continue;
    if (!unit->trained_slices().empty()) {
      for (const TensorSlice& slice : unit->trained_slices()) {
        parts.push_back({{slice.name, slice.slice, {0, slice.values.numel()}}});
      }
      continue;
    }
    auto& of_unit = parts.emplace_back();
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
      of_unit.push_back({unit->layout().items()[i].name, unit->slice_of(i), unit->place_in_shard(i)});
    }
  }
  const NamedTensors& replicated = state_->replicated();
  for (std::size_t i = 0; i < replicated.tensors.size(); ++i) {
    const at::Tensor& tensor = replicated.tensors[i];
    if (tensor.requires_grad()) parts.push_back({{replicated.names[i], global_slice(tensor), {0, tensor.numel()}}});
  }
  return parts;
}

void fsdp::FsdpState::require_uncut(const std::string& what) const {
  const auto require = [&](const std::string& name, const Slice& slice) {
    if (slice.is_whole()) return;
    throw ConfigError(what + " knows only the ranks that share this model (rank " +
                      std::to_string(ranks_.shards.world_rank()) + "), and of " + name + " those have " + slice.text() +
                      ": it was cut before fully_shard()");
  };
  for (const auto& unit : units_) {
    for (const FlatLayout::Item& item : unit->layout().items()) require(item.name, item.slice);
  }
  for (const NamedTensors& whole : {replicated_, buffers()}) {
    for (std::size_t i = 0; i < whole.tensors.size(); ++i) require(whole.names[i], global_slice(whole.tensors[i]));
  }
}

void ShardedModel::before_write() const { state_->before_write(); }

void fsdp::FsdpState::before_write() {
  raise_kept_errors();
  require_nothing_held();
  gathers_->release_all();
  for (const auto& unit : units_) unit->before_write();
}

std::vector<RankSlice> ShardedModel::shards() const {
  std::vector<RankSlice> shards;
  for (const auto& unit : state_->units()) {
    const auto of_unit = shards_of(unit->layout(), unit->partition());
    shards.insert(shards.end(), of_unit.begin(), of_unit.end());
  }
  return shards;
}

}  // namespace tessera
