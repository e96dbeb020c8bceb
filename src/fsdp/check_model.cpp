#include "fsdp/check_model.h"

#include <tessera/core/error.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/shard/refuse_modules.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <vector>

namespace tessera::fsdp {
namespace {

struct Parameter {
  std::string name;
  at::Tensor tensor;
  bool is_sharded;

  /// The elements of the storage between which it lies.
  std::int64_t first() const { return tensor.storage_offset(); }
  std::int64_t last() const {
    std::int64_t place = first();
    for (std::int64_t i = 0; i < tensor.dim(); ++i) place += (tensor.size(i) - 1) * tensor.stride(i);
    return place;
  }
};
using Parameters = std::vector<Parameter>;

void add(const NamedTensors& tensors, bool are_sharded, Parameters& parameters) {
  for (std::size_t i = 0; i < tensors.tensors.size(); ++i) {
    parameters.push_back({tensors.names[i], tensors.tensors[i], are_sharded});
  }
}

Parameters parameters_of(const ModelPlan& plan) {
  Parameters parameters;
  for (const UnitPlan& unit : plan.units) add(unit.parameters, true, parameters);
  add(plan.replicated, false, parameters);
  return parameters;
}

std::string fault_of_type(const Parameters& parameters) {
  for (const Parameter& parameter : parameters) {
    if (!parameter.tensor.is_complex()) continue;
    return "the parameter " + parameter.name +
           " is complex, and shards are of real numbers: keep its real and imaginary parts as parameters, or use "
           "distribute()";
  }
  return "";
}

/// How many tensors the parameters are views of that nobody else knows of, as in
/// `register_parameter("w", torch::randn({2, 3}).t())`.
std::int64_t num_hidden_bases(const Parameters& parameters) {
  std::map<const c10::TensorImpl*, std::size_t> num_views;
  for (const Parameter& parameter : parameters) {
    if (parameter.tensor.is_view()) ++num_views[parameter.tensor._base().unsafeGetTensorImpl()];
  }
  std::int64_t num_hidden = 0;
  for (const Parameter& parameter : parameters) {
    if (!parameter.tensor.is_view()) continue;
    const auto& base = parameter.tensor._base();
    const auto views = num_views.extract(base.unsafeGetTensorImpl());
    if (!views.empty() && base.use_count() == views.mapped()) ++num_hidden;
  }
  return num_hidden;
}

std::string fault_of_one_memory(Parameters parameters) {
  if (std::none_of(parameters.begin(), parameters.end(), [](const auto& one) { return one.is_sharded; })) return "";
  std::sort(parameters.begin(), parameters.end(),
            [](const Parameter& one, const Parameter& other) { return one.first() < other.first(); });
  for (std::size_t i = 1; i < parameters.size(); ++i) {
    const Parameter& before = parameters[i - 1];
    if (parameters[i].first() > before.last()) continue;
    return "the parameters " + before.name + " and " + parameters[i].name +
           " share memory, and would be two in shards: register the very same tensor in both places, or give one of "
           "them memory of its own by set_data(clone())";
  }
  const auto num_known = static_cast<std::int64_t>(parameters.size()) + num_hidden_bases(parameters);
  const auto num_users = static_cast<std::int64_t>(parameters.front().tensor.storage().use_count());
  if (num_users <= num_known) return "";
  return "the memory of the parameter " + parameters.front().name + " is in use by " +
         std::to_string(num_users - num_known) +
         " other tensor(s): a view that a module or the program keeps, as `wt = w.t()`, or the graph of an earlier "
         "forward, whose loss still lives. These would keep the values of now. Make views inside forward, drop what "
         "was computed before, or give the parameter memory of its own by set_data(clone())";
}

std::string fault_of_memory(const Parameters& parameters) {
  // In the order of the model, not of addresses: all ranks name the same parameter.
  std::vector<Parameters> by_memory;
  std::map<const c10::StorageImpl*, std::size_t> places;
  for (const Parameter& parameter : parameters) {
    if (is_deferred(parameter.tensor) || !parameter.tensor.has_storage() || parameter.tensor.numel() == 0) continue;
    const auto* const memory = parameter.tensor.storage().unsafeGetStorageImpl();
    const auto [place, is_new] = places.try_emplace(memory, by_memory.size());
    if (is_new) by_memory.emplace_back();
    by_memory[place->second].push_back(parameter);
  }
  for (Parameters& group : by_memory) {
    std::string fault = fault_of_one_memory(std::move(group));
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace

std::string fault_of(const torch::nn::Module& model, const ModelPlan& plan) {
  try {
    refuse_devices(model);
    refuse_sparse_gradients(model);
    refuse_renormalising_modules(model);
  } catch (const ConfigError& fault) {
    return fault.what();
  }
  const Parameters parameters = parameters_of(plan);
  std::string fault = fault_of_type(parameters);
  return fault.empty() ? fault_of_memory(parameters) : fault;
}

}  // namespace tessera::fsdp
