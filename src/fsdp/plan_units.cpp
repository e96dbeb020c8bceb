#include "fsdp/plan_units.h"

#include <tessera/fsdp/fully_sharded.h>

#include <torch/nn/module.h>

#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

namespace tessera::fsdp {
namespace {

/// Parameters with fewer elements stay whole.
std::int64_t min_elements_of(const FsdpOptions& options) {
  const bool is_mixed = options.param_dtype() != c10::ScalarType::Undefined || options.unit_precision();
  // A parameter that stays whole would keep its type, and meet others in an operator that wants one.
  return is_mixed ? 0 : options.min_num_params();
}

class Planner {
 public:
  explicit Planner(const FsdpOptions& options)
      : policy_(options.auto_wrap()),
        max_bytes_(options.max_unit_bytes() > 0 ? options.max_unit_bytes() : std::numeric_limits<std::int64_t>::max()),
        min_elements_(min_elements_of(options)) {}

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
      // A block that is FullySharded looks after its parameters itself.
      if (dynamic_cast<const ShardedBlock*>(child.value().get())) continue;
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
    const bool whole = parameter.numel() < min_elements_ || parameter.numel() == 0 || !parameter.is_floating_point();
    NamedTensors& target = whole ? plan_.replicated : left;
    target.names.push_back(std::move(name));
    target.tensors.push_back(parameter);
  }

  void make_units(const std::string& name, const NamedTensors& parameters) {
    // An optimizer must not touch what is frozen, weight decay would: so that lies apart.
    std::map<std::pair<at::ScalarType, bool>, NamedTensors> kinds;
    for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
      const at::Tensor& parameter = parameters.tensors[i];
      NamedTensors& kind = kinds[{parameter.scalar_type(), !parameter.requires_grad()}];
      kind.names.push_back(parameters.names[i]);
      kind.tensors.push_back(parameter);
    }
    for (const auto& [kind, of_kind] : kinds) make_units_of_kind(name, of_kind);
  }

  /// As a rule modules compute in the order in which they are registered, so neighbours are used one after another.
  void make_units_of_kind(const std::string& name, const NamedTensors& parameters) {
    std::int64_t num_bytes = 0;  // of the unit that is being filled
    for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
      const auto more = static_cast<std::int64_t>(parameters.tensors[i].nbytes());
      if (i == 0 || more > max_bytes_ - num_bytes) {
        plan_.units.push_back({name, {}});
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
  std::unordered_set<const c10::TensorImpl*> seen_;
  ModelPlan plan_;
};

}  // namespace

ModelPlan plan_units(const torch::nn::Module& model, const FsdpOptions& options) {
  return Planner(options).plan(model);
}

}  // namespace tessera::fsdp
