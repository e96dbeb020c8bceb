#include <tessera/core/error.h>
#include <tessera/fsdp/wrap_policy.h>

#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

/// "torch::nn::LinearImpl" and "Linear" are one name.
std::string short_name(std::string name) {
  if (const auto colons = name.rfind("::"); colons != std::string::npos) name.erase(0, colons + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

WrapPolicy::WrapPolicy(std::string text, Decide decide) : text_(std::move(text)), decide_(std::move(decide)) {
  if (!decide_) throw ConfigError("a wrap policy needs a function that decides; \"" + text_ + "\" has none");
}

bool WrapPolicy::wraps(const torch::nn::Module& module, const std::string& name, std::int64_t num_elements) const {
  return decide_(module, name, num_elements);
}

WrapPolicy wrap_by_size(std::int64_t min_elements) {
  if (min_elements < 1) {
    throw ConfigError("wrap_by_size needs a size above 0, found " + std::to_string(min_elements));
  }
  return {"by size, " + std::to_string(min_elements),
          [min_elements](const torch::nn::Module&, const std::string&, std::int64_t num_elements) {
            return num_elements >= min_elements;
          }};
}

WrapPolicy wrap_by_type(const std::vector<std::string>& type_names) {
  if (type_names.empty()) throw ConfigError("wrap_by_type needs the name of a module's type, as \"Linear\"");
  std::vector<std::string> shortened;
  for (const auto& name : type_names) shortened.push_back(short_name(name));
  return {"by type, " + joined(shortened),
          [shortened](const torch::nn::Module& module, const std::string&, std::int64_t) {
            return std::find(shortened.begin(), shortened.end(), short_name(module.name())) != shortened.end();
          }};
}

WrapPolicy wrap_none() {
  return {"none", [](const torch::nn::Module&, const std::string&, std::int64_t) { return false; }};
}

WrapPolicy detail::wrap_by_type_info(const std::vector<const std::type_info*>& types) {
  std::vector<std::string> names;
  for (const auto* type : types) names.push_back(c10::demangle(type->name()));
  return {"by type, " + joined(names), [types](const torch::nn::Module& module, const std::string&, std::int64_t) {
            return std::any_of(types.begin(), types.end(), [&](const auto* type) { return typeid(module) == *type; });
          }};
}

}  // namespace tessera
