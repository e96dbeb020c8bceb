#include "train/state/optimizer_state.h"

#include <tessera/core/error.h>
#include <tessera/optim/adamw.h>
#include <tessera/shard/trained_memory.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <sstream>
#include <type_traits>
#include <typeinfo>
#include <unordered_set>
#include <utility>

namespace tessera::train {
namespace {

namespace to = torch::optim;

bool always(const OptimizerOptions& /*options*/) { return true; }

template <class State>
std::unique_ptr<OptimizerParamState> made() {
  return std::make_unique<State>();
}

/// `get` is a lambda from State& to a field of it.
template <class State, class Get>
auto field(Get get) {
  using Field = std::remove_reference_t<decltype(get(std::declval<State&>()))>;
  return std::function<Field&(OptimizerParamState&)>(
      [get](OptimizerParamState& state) -> Field& { return get(static_cast<State&>(state)); });
}

template <class Options, class Get>
std::function<bool(const OptimizerOptions&)> where(Get get) {
  return [get](const OptimizerOptions& options) { return get(static_cast<const Options&>(options)); };
}

OptimizerKind sgd() {
  using State = to::SGDParamState;
  return {"SGD",
          made<State>,
          nullptr,
          {{"momentum_buffer", field<State>([](State& s) -> at::Tensor& { return s.momentum_buffer(); }),
            where<to::SGDOptions>([](const auto& options) { return options.momentum() != 0; })}},
          /*begins_with_state=*/false};
}

/// Adam and AdamW differ in names alone.
template <class State, class Options>
OptimizerKind adam(const char* name) {
  return {name,
          made<State>,
          field<State>([](State& s) -> std::int64_t& { return s.step(); }),
          {{"exp_avg", field<State>([](State& s) -> at::Tensor& { return s.exp_avg(); }), always},
           {"exp_avg_sq", field<State>([](State& s) -> at::Tensor& { return s.exp_avg_sq(); }), always},
           {"max_exp_avg_sq", field<State>([](State& s) -> at::Tensor& { return s.max_exp_avg_sq(); }),
            where<Options>([](const auto& options) { return options.amsgrad(); })}},
          /*begins_with_state=*/false};
}

OptimizerKind adagrad() {
  using State = to::AdagradParamState;
  return {"Adagrad",
          made<State>,
          field<State>([](State& s) -> std::int64_t& { return s.step(); }),
          {{"sum", field<State>([](State& s) -> at::Tensor& { return s.sum(); }), always}},
          /*begins_with_state=*/true};
}

OptimizerKind rmsprop() {
  using State = to::RMSpropParamState;
  return {"RMSprop",
          made<State>,
          field<State>([](State& s) -> std::int64_t& { return s.step(); }),
          {{"square_avg", field<State>([](State& s) -> at::Tensor& { return s.square_avg(); }), always},
           {"momentum_buffer", field<State>([](State& s) -> at::Tensor& { return s.momentum_buffer(); }),
            where<to::RMSpropOptions>([](const auto& options) { return options.momentum() > 0; })},
           {"grad_avg", field<State>([](State& s) -> at::Tensor& { return s.grad_avg(); }),
            where<to::RMSpropOptions>([](const auto& options) { return options.centered(); })}},
          /*begins_with_state=*/false};
}

}  // namespace

bool OptimizerKind::keeps_anything(const OptimizerOptions& options) const {
  return step || std::any_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.is_kept(options); });
}

OptimizerKind kind_of(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const to::SGD*>(&optimizer)) return sgd();
  if (dynamic_cast<const to::Adam*>(&optimizer)) return adam<to::AdamParamState, to::AdamOptions>("Adam");
  if (dynamic_cast<const to::AdamW*>(&optimizer) || dynamic_cast<const optim::AdamW*>(&optimizer)) {
    return adam<to::AdamWParamState, to::AdamWOptions>("AdamW");
  }
  if (dynamic_cast<const to::Adagrad*>(&optimizer)) return adagrad();
  if (dynamic_cast<const to::RMSprop*>(&optimizer)) return rmsprop();
  throw ConfigError(std::string("a checkpoint does not know what an optimizer of type ") + typeid(optimizer).name() +
                    " keeps for its parameters. Known are SGD, Adam, AdamW, Adagrad and RMSprop, and what is derived "
                    "from them");
}

namespace {

std::string value_name(const std::string& parameter, const char* what) {
  return std::string("optimizer/") + parameter + "/" + what;
}

std::string rate_name(std::size_t group) { return "optimizer/group/" + std::to_string(group) + "/lr"; }

/// Whether this rank has elements to write, or there are none at all.
bool holds(const ParameterPart& part) { return part.held.size > 0 || part.slice.num_tensor_elements() == 0; }

[[noreturn]] void refuse(const at::Tensor& parameter, std::size_t index, std::size_t group) {
  std::ostringstream text;
  text << "parameter " << index << " of group " << group << " of the optimizer, " << parameter.scalar_type() << " "
       << parameter.sizes()
       << ", is none of the model's: build the optimizer on the parameters() of what TrainingState::model() was given";
  throw ConfigError(text.str());
}

}  // namespace

OptimizerState::OptimizerState(torch::optim::Optimizer& optimizer, const PartsByTensor& parts)
    : optimizer_(optimizer), kind_(kind_of(optimizer)) {
  if (auto* const adamw = dynamic_cast<optim::AdamW*>(&optimizer)) adamw->settle();
  std::unordered_set<const c10::TensorImpl*> seen;
  for (std::size_t group = 0; group < optimizer_.param_groups().size(); ++group) {
    const auto& parameters = optimizer_.param_groups()[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto* const key = parameters[i].unsafeGetTensorImpl();
      const auto found = parts.find(key);
      if (found == parts.end()) refuse(parameters[i], i, group);
      if (seen.insert(key).second)
        entries_.push_back({.tensor = parameters[i], .parts = found->second, .group = group});
    }
  }
}

const OptimizerOptions& OptimizerState::options_of(const Entry& entry) const {
  return optimizer_.param_groups()[entry.group].options();
}

OptimizerParamState* OptimizerState::state_of(const Entry& entry) const {
  const auto found = optimizer_.state().find(entry.tensor.unsafeGetTensorImpl());
  return found == optimizer_.state().end() ? nullptr : found->second.get();
}

bool OptimizerState::is_untouched(OptimizerParamState& state) const {
  return kind_.begins_with_state && kind_.step && kind_.step(state) == 0;
}

// ---- saving ---------------------------------------------------------------------------------------------------------

void OptimizerState::capture(RankState& into) const {
  for (std::size_t group = 0; group < optimizer_.param_groups().size(); ++group) {
    into.values[rate_name(group)] = optimizer_.param_groups()[group].options().get_lr();
  }
  for (const Entry& entry : entries_) {
    OptimizerParamState* const state = state_of(entry);
    // A frozen parameter gets no state, and other layouts do not even list it.
    if (!entry.tensor.requires_grad() && (!state || is_untouched(*state))) continue;
    for (const ParameterPart& part : entry.parts) {
      if (!state) {
        // The ranks that have the parameter know whether it has been trained.
        if (holds(part)) into.values[value_name(part.name, "is_new")] = true;
        continue;
      }
      // A rank of a pipeline that has loaded a step for what lies on others does not count on.
      if (kind_.step && holds(part)) into.values[value_name(part.name, "step")] = kind_.step(*state);
      for (const StateTensor& one : kind_.tensors) {
        const at::Tensor& tensor = one.of(*state);
        if (!tensor.defined() || !holds(part)) continue;
        into.slices.push_back(slice_of(kOptimizerGroup, part.name + "/" + one.name, part, tensor));
      }
    }
  }
}

// ---- loading --------------------------------------------------------------------------------------------------------

void OptimizerState::plan(SavedNames& names) {
  rates_.clear();
  for (std::size_t group = 0; group < optimizer_.param_groups().size(); ++group) {
    rates_.push_back(names.take_value<double>(rate_name(group)));
  }
  for (Entry& entry : entries_) plan(entry, names);
}

bool OptimizerState::has_saved_state(const SavedNames& names, const std::string& saved) const {
  if (kind_.step && names.find_value(value_name(saved, "step"))) return true;
  return std::any_of(kind_.tensors.begin(), kind_.tensors.end(), [&](const StateTensor& one) {
    return names.find_tensor(kOptimizerGroup, saved + "/" + one.name) != nullptr;
  });
}

void OptimizerState::plan(Entry& entry, SavedNames& names) const {
  entry.has_state = false;
  std::vector<std::string> with;
  std::vector<std::string> without;
  for (const ParameterPart& part : entry.parts) {
    const std::string& saved = names.saved_name(part.name);
    const bool is_new = names.find_value(value_name(saved, "is_new")) != nullptr;
    if (is_new) names.take_value<bool>(value_name(saved, "is_new"));
    if (!is_new && has_saved_state(names, saved)) {
      with.push_back(saved);
      continue;
    }
    without.push_back(saved);
    if (is_new || !entry.tensor.requires_grad() || !kind_.keeps_anything(options_of(entry))) continue;
    names.note_missing("optimizer/" + saved + ", what the optimizer keeps for it");
  }
  if (with.empty()) return;
  if (!without.empty() && !names.allows_missing()) {
    names.note_fault("one vector is trained for " + with.front() + " and " + without.front() +
                     ", and only for the first one of them there is an optimizer's state: shard with "
                     "use_orig_params(true)");
    return;
  }
  plan_saved(entry, names);
}

void OptimizerState::plan_saved(Entry& entry, SavedNames& names) const {
  entry.has_state = true;
  std::optional<std::pair<std::string, std::int64_t>> first;
  for (const ParameterPart& part : entry.parts) {
    const std::string& saved = names.saved_name(part.name);
    if (!has_saved_state(names, saved)) continue;
    if (kind_.step) {
      const auto step = names.take_value<std::int64_t>(value_name(saved, "step"));
      if (step && !first) first = {saved, *step};
      if (step && *step != first->second) {
        names.note_fault("one vector is trained for " + first->first + " and " + saved +
                         ", which were stepped differently often, " + std::to_string(first->second) + " and " +
                         std::to_string(*step) + " times: shard with use_orig_params(true)");
      }
    }
    for (const StateTensor& one : kind_.tensors) {
      if (one.is_kept(options_of(entry)))
        names.take_tensor(kOptimizerGroup, saved + "/" + one.name, part.slice.shape());
    }
  }
  if (first) entry.step = first->second;
}

std::vector<HeldSlice> OptimizerState::apply(const SavedNames& names) {
  const at::NoGradGuard no_grad;
  std::vector<HeldSlice> slices;
  for (std::size_t group = 0; group < rates_.size(); ++group) {
    if (rates_[group]) optimizer_.param_groups()[group].options().set_lr(*rates_[group]);
  }
  for (const Entry& entry : entries_) apply(entry, names, slices);
  return slices;
}

void OptimizerState::apply(const Entry& entry, const SavedNames& names, std::vector<HeldSlice>& slices) {
  void* const key = entry.tensor.unsafeGetTensorImpl();
  if (!entry.has_state) {
    if (!kind_.begins_with_state) optimizer_.state().erase(key);
    return;
  }
  auto& state = optimizer_.state()[key];
  if (!state) state = kind_.make();
  if (kind_.step) kind_.step(*state) = entry.step;
  for (const StateTensor& one : kind_.tensors) {
    if (!one.is_kept(options_of(entry))) continue;
    at::Tensor& tensor = one.of(*state);
    // What lies in a file goes there again in the next step.
    const bool fits = tensor.defined() && tensor.sizes() == entry.tensor.sizes() && !shard::has_no_bytes(tensor);
    if (!fits) tensor = at::zeros_like(entry.tensor.detach());
    for (const ParameterPart& part : entry.parts) {
      const std::string saved = names.saved_name(part.name) + "/" + one.name;
      if (!holds(part) || !names.find_tensor(kOptimizerGroup, saved)) continue;
      slices.push_back(slice_of(kOptimizerGroup, saved, part, tensor));
    }
  }
}

}  // namespace tessera::train
