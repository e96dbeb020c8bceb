#include "fsdp/plan_units.h"

#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/shard/refuse_modules.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tessera::fsdp {
namespace {

/// Parameters with fewer elements stay whole.
std::int64_t min_elements_of(const FsdpOptions& options) {
  const bool is_mixed = options.param_dtype() != c10::ScalarType::Undefined || options.unit_precision();
  // A parameter that stays whole would keep its type, and an operator that needs one type would get two.
  return is_mixed ? 0 : options.min_num_params();
}

class Planner {
 public:
  explicit Planner(const FsdpOptions& options)
      : policy_(options.auto_wrap()),
        max_bytes_(options.max_unit_bytes() > 0 ? options.max_unit_bytes() : std::numeric_limits<std::int64_t>::max()),
        min_elements_(min_elements_of(options)),
        device_(options.device()) {}

  ModelPlan plan(const torch::nn::Module& model) {
    make_units("", visit(model, ""));
    return std::move(plan_);
  }

 private:
  /// The parameters of a module that no unit has taken.
  NamedTensors visit(const torch::nn::Module& module, const std::string& name) {
    NamedTensors left;
    for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
      take(joined(name, entry.key()), entry.value(), left);
    }
    for (const auto& child : module.named_children()) {
      const std::string child_name = joined(name, child.key());
      NamedTensors of_child = visit(*child.value(), child_name);
      const auto num_elements = count(of_child);
      if (num_elements > 0 && policy_.wraps(*child.value(), child_name, num_elements)) {
        make_units(child_name, of_child);
        continue;
      }
      left.names.insert(left.names.end(), of_child.names.begin(), of_child.names.end());
      left.tensors.insert(left.tensors.end(), of_child.tensors.begin(), of_child.tensors.end());
    }
    return left;
  }

  void take(std::string name, const at::Tensor& parameter, NamedTensors& left) {
    if (!parameter.defined() || !seen_.insert(parameter.unsafeGetTensorImpl()).second) return;
    if (intercept::is_elsewhere(parameter)) return;
    const std::int64_t num_elements = parameter.numel();
    const bool whole = num_elements < min_elements_ || num_elements == 0 || !parameter.is_floating_point();
    NamedTensors& target = whole ? plan_.replicated : left;
    target.names.push_back(std::move(name));
    target.tensors.push_back(parameter);
  }

  void make_units(const std::string& name, const NamedTensors& parameters) {
    // Frozen parameters form units of their own: an optimizer, with weight decay say, must not change them. So do those
    // that tensor parallelism has cut: a norm counts them on every rank of that axis, and the others on one.
    std::map<std::tuple<at::ScalarType, bool, bool>, NamedTensors> kinds;
    for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
      const at::Tensor& parameter = parameters.tensors[i];
      NamedTensors& kind =
          kinds[{parameter.scalar_type(), !parameter.requires_grad(), intercept::holds_part(parameter)}];
      kind.names.push_back(parameters.names[i]);
      kind.tensors.push_back(parameter);
    }
    for (const auto& [kind, of_kind] : kinds) make_units_of_kind(name, of_kind);
  }

  /// As a rule modules compute in the order in which they are registered, so neighbours are used one after another.
  void make_units_of_kind(const std::string& name, const NamedTensors& parameters) {
    std::int64_t num_bytes = 0;  // of the unit that is being filled
    for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
      const std::int64_t more = parameters.tensors[i].numel() * parameters.tensors[i].element_size();
      if (i == 0 || more > max_bytes_ - num_bytes) {
        plan_.units.push_back({name, {}, device_.value_or(parameters.tensors[i].device())});
        num_bytes = 0;
      }
      num_bytes += more;
      NamedTensors& unit = plan_.units.back().parameters;
      unit.names.push_back(parameters.names[i]);
      unit.tensors.push_back(parameters.tensors[i]);
    }
  }

  static std::string joined(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  static std::int64_t count(const NamedTensors& parameters) {
    std::int64_t num_elements = 0;
    for (const at::Tensor& parameter : parameters.tensors) num_elements += parameter.numel();
    return num_elements;
  }

  const WrapPolicy& policy_;
  std::int64_t max_bytes_;  // of a unit
  std::int64_t min_elements_;
  std::optional<c10::Device> device_;
  std::unordered_set<const c10::TensorImpl*> seen_;
  ModelPlan plan_;
};

}  // namespace

ModelPlan plan_units(const torch::nn::Module& model, const FsdpOptions& options) {
  return Planner(options).plan(model);
}

namespace {

struct Parameter {
  std::string name;
  at::Tensor tensor;
  bool is_sharded;

  /// Its first and its last element in the storage.
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

/// How many base tensors have no references other than their views among these parameters, as in
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
  // In the order of the model, not of addresses, so that all ranks name the same parameter.
  std::vector<Parameters> by_memory;
  std::map<const c10::StorageImpl*, std::size_t> places;
  for (const Parameter& parameter : parameters) {
    // The part of one that is cut was made for it.
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
    refuse_cut_buffers(model);
    refuse_several_devices(model);
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
