#include "pipeline/stage_cut.h"

#include <tessera/core/error.h>
#include <tessera/mesh/three_d_parallelism.h>
#include <tessera/shard/layer_names.h>
#include <tessera/shard/named_tensors.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

namespace tessera::pp {
namespace {

/// A module with parameters and buffers of its own, which its children have not.
struct Place {
  std::string name;
  std::int64_t num_parameters = 0;  // of its own
  bool is_layer = false;
};

/// The modules in the order in which the model registers them.
class Places {
 public:
  Places(const torch::nn::Module& model, int num_stages) {
    std::unordered_set<const c10::TensorImpl*> counted;
    for (const auto& item : model.named_modules("", true)) {
      std::int64_t count = 0;
      for (const at::Tensor& one : item.value()->parameters(false)) {
        if (counted.insert(one.unsafeGetTensorImpl()).second) count += one.numel();
      }
      by_name_[item.key()] = places_.size();
      places_.push_back({item.key(), count, false});
    }
    for (const std::string& name : layer_names(model)) {
      if (const auto place = find(name)) places_[*place].is_layer = true;
    }
    if (layers().size() >= static_cast<std::size_t>(num_stages)) return;
    for (Place& one : places_) one.is_layer = one.num_parameters > 0;
  }

  const std::vector<Place>& all() const { return places_; }
  std::optional<std::size_t> find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<std::size_t> layers() const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].is_layer) found.push_back(i);
    }
    return found;
  }

 private:
  std::vector<Place> places_;
  std::map<std::string, std::size_t> by_name_;
};

std::string names_of(const Places& places) {
  std::string names;
  int count = 0;
  for (const Place& one : places.all()) {
    if (one.name.empty()) continue;
    if (++count > 40) return names + ", ...";
    names += (names.empty() ? "" : ", ") + one.name;
  }
  return names;
}

[[noreturn]] void refuse(const std::string& what, const Places& places) {
  throw ConfigError("the cut of the pipeline does not fit the model: " + what + ". Its modules are " +
                    names_of(places));
}

/// By the parameters of each layer, and of what lies between it and the next one.
std::vector<double> costs_by_parameters(const Places& places, const std::vector<std::size_t>& layers) {
  std::vector<double> costs(layers.size(), 0);
  std::size_t layer = 0;
  for (std::size_t i = 0; i < places.all().size(); ++i) {
    while (layer + 1 < layers.size() && i >= layers[layer + 1]) ++layer;
    costs[layer] += static_cast<double>(places.all()[i].num_parameters);
  }
  return costs;
}

/// How many layers each stage has.
std::vector<int> layers_of_stages(const Places& places, const std::vector<std::size_t>& layers,
                                  const PipelineOptions& options, int num_stages) {
  const std::vector<double>& costs = options.layer_costs();
  if (!costs.empty()) {
    if (!options.layers_per_stage().empty()) refuse("layer_costs and layers_per_stage are both given", places);
    if (costs.size() != layers.size()) {
      refuse("layer_costs has " + std::to_string(costs.size()) + " numbers for " + std::to_string(layers.size()) +
                 " layers",
             places);
    }
    return balanced_layers(costs, num_stages);
  }
  if (options.layers_per_stage().empty()) return balanced_layers(costs_by_parameters(places, layers), num_stages);
  std::vector<int> counts;
  for (const std::int64_t count : options.layers_per_stage()) counts.push_back(static_cast<int>(count));
  const bool fits =
      static_cast<int>(counts.size()) == num_stages && std::ranges::all_of(counts, [](int n) { return n > 0; });
  if (!fits || std::accumulate(counts.begin(), counts.end(), 0) != static_cast<int>(layers.size())) {
    refuse("layers_per_stage must have " + std::to_string(num_stages) + " numbers above 0 whose sum is " +
               std::to_string(layers.size()),
           places);
  }
  return counts;
}

/// With which module each stage but the first begins.
std::vector<std::size_t> beginnings(const Places& places, const PipelineOptions& options, int num_stages) {
  std::vector<std::size_t> found;
  if (!options.split().empty()) {
    if (!options.layers_per_stage().empty()) refuse("split and layers_per_stage are both given", places);
    if (!options.layer_costs().empty()) refuse("split and layer_costs are both given", places);
    if (static_cast<int>(options.split().size()) != num_stages - 1) {
      refuse("there are " + std::to_string(num_stages) + " stages, so split must name " +
                 std::to_string(num_stages - 1) + " modules, found " + std::to_string(options.split().size()),
             places);
    }
    for (const std::string& name : options.split()) {
      const auto place = places.find(name);
      if (!place) refuse("there is no module '" + name + "'", places);
      if (*place == 0 || (!found.empty() && *place <= found.back())) {
        refuse("'" + name + "' does not come after what the stage before it begins with", places);
      }
      found.push_back(*place);
    }
    return found;
  }
  const std::vector<std::size_t> layers = places.layers();
  if (static_cast<int>(layers.size()) < num_stages) {
    refuse("the model has " + std::to_string(layers.size()) + " layers for a pipeline of " +
               std::to_string(num_stages) + " stages",
           places);
  }
  const std::vector<int> counts = layers_of_stages(places, layers, options, num_stages);
  std::size_t first = 0;
  for (std::size_t stage = 0; stage + 1 < counts.size(); ++stage) {
    first += static_cast<std::size_t>(counts[stage]);
    found.push_back(layers[first]);
  }
  return found;
}

/// "head: 1"
std::pair<std::string, int> placed(const std::string& text, int num_stages, const Places& places) {
  const std::size_t colon = text.rfind(':');
  int stage = -1;
  if (colon != std::string::npos) {
    const std::size_t begin = text.find_first_not_of(' ', colon + 1);
    if (begin != std::string::npos) std::from_chars(text.data() + begin, text.data() + text.size(), stage);
  }
  if (stage < 0 || stage >= num_stages) {
    refuse("place must have the form \"head: 1\", with a stage from 0 to " + std::to_string(num_stages - 1) +
               ", found \"" + text + "\"",
           places);
  }
  return {text.substr(0, colon), stage};
}

bool lies_in(const std::string& name, const std::string& module) {
  return name == module || (name.starts_with(module) && name.size() > module.size() && name[module.size()] == '.');
}

}  // namespace

std::vector<StageTensor> cut_into_stages(const torch::nn::Module& model, const PipelineOptions& options,
                                         int num_stages) {
  const Places places(model, num_stages);
  const std::vector<std::size_t> begins = beginnings(places, options, num_stages);
  const auto stage_of_module = [&](const std::string& name) {
    const std::size_t place = *places.find(name);
    return static_cast<int>(std::ranges::count_if(begins, [&](std::size_t begin) { return begin <= place; }));
  };
  std::unordered_set<const c10::TensorImpl*> buffers;
  for (const at::Tensor& one : buffers_of(model).tensors) buffers.insert(one.unsafeGetTensorImpl());
  const NamedTensors state = state_of(model);
  std::vector<StageTensor> tensors;
  for (std::size_t i = 0; i < state.names.size(); ++i) {
    const std::string& name = state.names[i];
    const std::size_t dot = name.rfind('.');
    tensors.push_back({name, state.tensors[i], stage_of_module(dot == std::string::npos ? "" : name.substr(0, dot)),
                       buffers.contains(state.tensors[i].unsafeGetTensorImpl())});
  }
  for (const std::string& text : options.place()) {
    const auto [module, stage] = placed(text, num_stages, places);
    bool found = false;
    for (StageTensor& one : tensors) {
      if (!lies_in(one.name, module)) continue;
      one.stage = stage;
      found = true;
    }
    if (!found) refuse("place names '" + module + "', which has no parameters and no buffers", places);
  }
  std::map<const void*, const StageTensor*> memory;
  for (const StageTensor& one : tensors) {
    if (!one.tensor.has_storage() || one.tensor.numel() == 0) continue;
    const auto [known, is_new] = memory.emplace(one.tensor.storage().unsafeGetStorageImpl(), &one);
    if (is_new || (known->second->stage == one.stage && known->second->is_buffer == one.is_buffer)) continue;
    refuse(one.name + " of stage " + std::to_string(one.stage) + " shares its memory with " + known->second->name +
               " of stage " + std::to_string(known->second->stage) + ": register one tensor in both places instead",
           places);
  }
  return tensors;
}

}  // namespace tessera::pp
