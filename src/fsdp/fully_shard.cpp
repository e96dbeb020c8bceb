#include <tessera/comm/texts.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/model_state.h>
#include <tessera/shard/refuse_modules.h>
#include <tessera/shard/reproducible.h>
#include <tessera/shard/same_model.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fsdp/fsdp_state.h"
#include "fsdp/plan_units.h"

namespace tessera {
namespace {

using fsdp::FsdpState;
using fsdp::UnitRanks;

/// Why these options cannot be met; "" when they can.
std::string fault_of(const torch::nn::Module& model, const UnitRanks& ranks, const FsdpOptions& options) {
  try {
    FsdpOptions::fields().check(options);
    if (options.reproducible()) refuse_cut_models(model);
    if (options.reproducible()) refuse_irreproducible_modules(model);
    const auto plan = fsdp::plan_units(model, options);
    if (auto fault = fsdp::fault_of(model, plan); !fault.empty()) return fault;
  } catch (const ConfigError& fault) {
    return fault.what();
  }
  std::string faults;
  if (options.reproducible()) {
    faults = faults_of_tree(options.micro_batches(), ranks.num_ranks());
  } else if (options.micro_batches() != 0) {
    faults = "\n  micro_batches is for reproducible(true) only";
  }
  return faults.empty() ? "" : "the options of sharding cannot be met:" + faults;
}

/// A line for each option and tensor that must be the same on every rank.
std::vector<std::string> lines_of(const torch::nn::Module& model, const FsdpOptions& options) {
  std::vector<std::string> lines;
  for (const auto& field : FsdpOptions::fields().fields()) {
    lines.push_back("option " + field.key + " = " + FsdpOptions::fields().get_text(options, field.key));
  }
  lines.push_back("wrap policy " + options.auto_wrap().text());
  lines.push_back(std::string("flat_sources ") + (options.flat_sources() ? "given" : "none"));
  const auto tensors = described(here(state_of(model)));
  lines.insert(lines.end(), tensors.begin(), tensors.end());
  return lines;
}

ShardedModel make_sharded(std::shared_ptr<torch::nn::Module> model, const UnitRanks& ranks,
                          const FsdpOptions& options) {
  if (!model) throw ConfigError("there is no model to shard: the pointer is null");
  const std::string fault = fault_of(*model, ranks, options);
  auto lines = lines_of(*model, options);
  // If one rank finds a fault, the others must throw too instead of waiting for it.
  lines.push_back("fault: " + fault);
  std::replace(lines.back().begin(), lines.back().end(), '\n', ' ');
  ranks.require_same([&](const Communicator& comm) { require_same_lines(comm, lines); },
                     [&](const std::string& difference) { lines.push_back(difference); });
  if (!fault.empty()) throw ConfigError(fault + " (rank " + std::to_string(ranks.shards.world_rank()) + ")");
  return ShardedModel(FsdpState::make(std::move(model), ranks, options));
}

ShardedModel shard_along_one_axis(std::shared_ptr<torch::nn::Module> model, const Communicator& comm,
                                  const FsdpOptions& options) {
  if (options.strategy() == ShardingStrategy::kHybridShard) {
    throw ConfigError(
        "hybrid sharding needs two axes: fully_shard(model, mesh[\"shard\"], mesh[\"replica\"], options)");
  }
  if (options.strategy() == ShardingStrategy::kNoShard) {
    return make_sharded(std::move(model), {comm.split({comm.rank()}, "no_shard"), comm}, options);
  }
  return make_sharded(std::move(model), {comm, std::nullopt}, options);
}

}  // namespace

ShardedModel fully_shard(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks, const FsdpOptions& options) {
  return shard_along_one_axis(std::move(model), ranks.comm(), options);
}

ShardedModel fully_shard(std::shared_ptr<torch::nn::Module> model, const Ranks& shards, const Ranks& replicas,
                         const FsdpOptions& options) {
  FsdpOptions hybrid = options;
  hybrid.strategy(ShardingStrategy::kHybridShard);
  return make_sharded(std::move(model), {shards.comm(), replicas.comm()}, hybrid);
}

double FsdpStatistics::local_sharding_ratio() const {
  return full_bytes == 0 ? 1 : static_cast<double>(shard_bytes) / static_cast<double>(full_bytes);
}

ShardedModel::ShardedModel(std::shared_ptr<FsdpState> state) : ParallelModel(state), state_(std::move(state)) {}

void ShardedModel::set_micro_batch(std::int64_t index) const { state_->set_micro_batch(index); }

FsdpStatistics ShardedModel::statistics() const { return state_->statistics(); }

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
  state_->allow_shards();
  state_->parts().require_uncut("full_state_dict()");
  std::map<std::string, at::Tensor> state;
  for (const auto& unit : state_->parts().units()) unit->require_own_memory();
  // Unit by unit: all of them at once may be more than a rank can hold.
  for (const auto& unit : state_->parts().units()) {
    const at::Tensor flat = unit->whole_values();
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
      state[unit->layout().items()[i].name] = unit->view_of(flat, i).clone();
    }
  }
  const NamedTensors& replicated = state_->parts().replicated();
  for (std::size_t i = 0; i < replicated.tensors.size(); ++i) {
    state[replicated.names[i]] = replicated.tensors[i].detach().clone();
  }
  const NamedTensors buffers = state_->parts().buffers();
  std::vector<at::Tensor> copies;
  for (std::size_t i = 0; i < buffers.tensors.size(); ++i) {
    copies.push_back(state[buffers.names[i]] = buffers.tensors[i].clone());
  }
  // As in training, rank 0's buffers count.
  if (state_->parts().ranks().replicas) broadcast_all(*state_->parts().ranks().replicas, copies, 0);
  broadcast_all(state_->parts().ranks().shards, copies, 0);
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

std::vector<RankSlice> ShardedModel::shards() const {
  std::vector<RankSlice> shards;
  for (const auto& unit : state_->parts().units()) {
    const auto of_unit = shards_of(unit->layout(), unit->partition());
    shards.insert(shards.end(), of_unit.begin(), of_unit.end());
  }
  return shards;
}

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

/// The values of a dict for the tensors of the model. A tensor that the model holds in several places may be given
/// under any of its names, or under several if the values agree.
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

/// Throws on every rank, with the same report.
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
  const UnitRanks& ranks = state_->parts().ranks();
  const bool has_values = where == FullStateOn::kEveryRank || is_first(ranks);
  std::optional<Given> given;
  if (has_values) given.emplace(module(), state);
  require_no_faults(ranks, has_values ? given->faults() : "");
  state_->before_write();
  for (const auto& unit : state_->parts().units()) {
    const at::Tensor flat = unit->empty_flat();
    if (has_values) {
      for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
        unit->view_of(flat, i).copy_(given->value_of(unit->parameters()[i]));
      }
    }
    if (where == FullStateOn::kRank0) ranks.broadcast(flat);
    unit->set_values(flat);
  }
  std::vector<at::Tensor> whole = state_->parts().buffers().tensors;
  whole.insert(whole.end(), state_->parts().replicated().tensors.begin(), state_->parts().replicated().tensors.end());
  if (has_values) {
    for (const at::Tensor& tensor : whole) tensor.detach().copy_(given->value_of(tensor));
  }
  if (where == FullStateOn::kEveryRank) return;
  broadcast_all(ranks.shards, whole, 0);
  if (ranks.replicas) broadcast_all(*ranks.replicas, whole, 0);
}

}  // namespace tessera
