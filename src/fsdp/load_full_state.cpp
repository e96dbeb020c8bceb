#include <tessera/comm/texts.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "fsdp/fsdp_state.h"

namespace tessera {
namespace {

using fsdp::UnitRanks;
using State = std::map<std::string, at::Tensor>;

/// Every name that a tensor of the model has.
std::map<std::string, at::Tensor> names_of(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> names;
  for (const auto& entry : model.named_parameters()) names.emplace(entry.key(), entry.value());
  for (const auto& entry : model.named_buffers()) names.emplace(entry.key(), entry.value());
  return names;
}

/// Tensors that a dict gives to tensors of the model. One that the model holds in several places may come by any of its
/// names, or by all of them if they agree.
class Given {
 public:
  Given(const torch::nn::Module& model, const State& state) {
    for (const auto& [name, tensor] : names_of(model)) {
      names_of_[tensor.unsafeGetTensorImpl()].push_back(name);
      take(name, tensor, state);
    }
    for (const auto& [impl, names] : names_of_) {
      if (!values_.contains(impl)) add_fault(names.front() + " is missing");
    }
    for (const auto& [name, value] : state) {
      if (!known_.contains(name)) add_fault(name + " is not of this model");
    }
  }
  const std::string& faults() const { return faults_; }
  const at::Tensor& value_of(const at::Tensor& tensor) const { return values_.at(tensor.unsafeGetTensorImpl()); }

 private:
  void take(const std::string& name, const at::Tensor& tensor, const State& state) {
    known_.insert(name);
    const auto found = state.find(name);
    if (found == state.end()) return;
    const at::Tensor& value = found->second;
    if (!value.defined() || value.sizes() != tensor.sizes()) {
      std::ostringstream text;
      text << name << " has the shape " << tensor.sizes() << ", and ";
      if (value.defined()) {
        text << value.sizes();
      } else {
        text << "no tensor";
      }
      text << " was given";
      add_fault(text.str());
      return;
    }
    const auto [place, is_new] = values_.emplace(tensor.unsafeGetTensorImpl(), value);
    if (!is_new && !at::equal(place->second, value)) {
      add_fault(name + " is a second name of a tensor, and was given other values than the first");
    }
  }
  void add_fault(const std::string& fault) { faults_ += "\n  " + fault; }

  std::unordered_map<const c10::TensorImpl*, at::Tensor> values_;
  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names_of_;
  std::set<std::string> known_;
  std::string faults_;
};

/// Throws the same on every rank.
void require_no_faults(const UnitRanks& ranks, const std::string& faults) {
  std::string report = first_report(all_gather_texts(ranks.shards, faults));
  if (ranks.replicas) report = first_report(all_gather_texts(*ranks.replicas, report));
  if (report.empty()) return;
  throw ConfigError("this full state dict does not fit the model: " + report + "\nNothing was loaded (rank " +
                    std::to_string(ranks.shards.world_rank()) + ")");
}

bool is_first(const UnitRanks& ranks) {
  return ranks.shards.rank() == 0 && (!ranks.replicas || ranks.replicas->rank() == 0);
}

}  // namespace

void ShardedModel::load_full_state_dict(const State& state, FullStateOn where) const {
  const at::NoGradGuard no_grad;
  const UnitRanks& ranks = state_->ranks();
  const bool has_values = where == FullStateOn::kEveryRank || is_first(ranks);
  std::optional<Given> given;
  if (has_values) given.emplace(module(), state);
  require_no_faults(ranks, has_values ? given->faults() : "");
  state_->before_write();
  for (const auto& unit : state_->units()) {
    const at::Tensor row = unit->empty_row();
    if (has_values) {
      for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
        unit->view_of(row, i).copy_(given->value_of(unit->parameters()[i]));
      }
    }
    if (where == FullStateOn::kRank0) ranks.broadcast(row);
    unit->set_values(row);
  }
  std::vector<at::Tensor> whole = state_->buffers().tensors;
  whole.insert(whole.end(), state_->replicated().tensors.begin(), state_->replicated().tensors.end());
  if (has_values) {
    for (const at::Tensor& tensor : whole) tensor.detach().copy_(given->value_of(tensor));
  }
  if (where == FullStateOn::kEveryRank) return;
  broadcast_all(ranks.shards, whole, 0);
  if (ranks.replicas) broadcast_all(*ranks.replicas, whole, 0);
}

}  // namespace tessera
