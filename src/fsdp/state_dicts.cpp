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
  add_other_names(module(), state);
  return state;
}

std::map<std::string, StateSlice> ShardedModel::sharded_state_dict() const {
  std::map<std::string, StateSlice> state;
  for (StateSlice& slice : state_slices()) {
    if (slice.values.numel() > 0 || slice.slice.num_tensor_elements() == 0) state[slice.name] = std::move(slice);
  }
  return state;
}

namespace fsdp {

std::vector<StateSlice> FsdpState::state_slices() const {
  std::vector<StateSlice> state;
  for (const auto& unit : units_) {
    unit->require_own_memory();
    if (unit->is_written()) {
      throw ConfigError("the slices of this model are asked for while gather() holds it to be written to (rank " +
                        std::to_string(ranks_.shards.world_rank()) + "): they get what was written when that ends");
    }
    for (const TensorSlice& slice : unit->slices()) state.push_back({slice});
  }
  const auto add_whole = [&](const NamedTensors& tensors, bool are_buffers) {
    for (std::size_t i = 0; i < tensors.tensors.size(); ++i) {
      state.push_back(shard::whole_state(tensors.names[i], tensors.tensors[i], are_buffers));
    }
  };
  add_whole(replicated_, false);
  add_whole(buffers(), true);
  return state;
}

std::vector<ModelAxis> FsdpState::axes() const {
  require_uncut_parameters("ParallelModel::axes()");
  std::vector<ModelAxis> axes{{ranks_.shards, true}};
  if (ranks_.replicas) axes.push_back({*ranks_.replicas, false});
  return axes;
}

std::vector<TrainedTensor> FsdpState::trained() const {
  constexpr std::size_t kShards = 0;  // in axes()
  constexpr std::size_t kReplicas = 1;
  const auto over_replicas = ranks_.replicas ? std::vector{kReplicas} : std::vector<std::size_t>{};
  const auto over_all = ranks_.replicas ? std::vector{kShards, kReplicas} : std::vector{kShards};
  std::vector<TrainedTensor> trained;
  for (const auto& unit : units_) {
    if (!unit->is_trained()) continue;
    const auto& slices = unit->trained_slices();
    for (std::size_t i = 0; i < slices.size(); ++i) {
      // A program that leaves out what is frozen asks the slice.
      slices[i].values.set_requires_grad(unit->parameters()[i].requires_grad());
      trained.push_back({slices[i].name,
                         slices[i].values,
                         {{slices[i].name, slices[i].slice, {0, slices[i].values.numel()}}},
                         over_replicas});
    }
    if (!slices.empty()) continue;
    auto& row = trained.emplace_back(TrainedTensor{unit->name(), unit->shard(), {}, over_replicas});
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
      row.parts.push_back({unit->layout().items()[i].name, unit->slice_of(i), unit->place_in_shard(i)});
    }
  }
  for (std::size_t i = 0; i < replicated_.tensors.size(); ++i) {
    const at::Tensor& tensor = replicated_.tensors[i];
    if (!trains_replicated_[i]) continue;
    const std::string& name = replicated_.names[i];
    trained.push_back({name, tensor, {{name, global_slice(tensor), {0, tensor.numel()}}}, over_all});
  }
  return trained;
}

void FsdpState::require_uncut(const std::string& what, const std::string& name, const Slice& slice) const {
  if (slice.is_whole()) return;
  throw ConfigError(what + " knows only the ranks that share this model (rank " +
                    std::to_string(ranks_.shards.world_rank()) + "), and of " + name + " those have " + slice.text() +
                    ": it was cut before fully_shard()");
}

void FsdpState::require_uncut_parameters(const std::string& what) const {
  for (const auto& unit : units_) {
    for (const FlatLayout::Item& item : unit->layout().items()) require_uncut(what, item.name, item.slice);
  }
  for (std::size_t i = 0; i < replicated_.tensors.size(); ++i) {
    require_uncut(what, replicated_.names[i], global_slice(replicated_.tensors[i]));
  }
}

void FsdpState::require_uncut(const std::string& what) const {
  require_uncut_parameters(what);
  const NamedTensors held = buffers();
  for (std::size_t i = 0; i < held.tensors.size(); ++i) {
    require_uncut(what, held.names[i], global_slice(held.tensors[i]));
  }
}

void FsdpState::before_write() {
  raise_kept_errors();
  require_nothing_held();
  gathers_->release_all();
  for (const auto& unit : units_) unit->before_write();
}

void FsdpState::after_write() {
  for (const auto& unit : units_) unit->after_write();
}

}  // namespace fsdp

std::vector<RankSlice> ShardedModel::shards() const {
  std::vector<RankSlice> shards;
  for (const auto& unit : state_->units()) {
    const auto of_unit = shards_of(unit->layout(), unit->partition());
    shards.insert(shards.end(), of_unit.begin(), of_unit.end());
  }
  return shards;
}

}  // namespace tessera
