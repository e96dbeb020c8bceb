#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <typeinfo>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

/// Which modules of a model become units: what is gathered, used and released together. A module that does not become
/// one leaves its parameters to the module that holds it; the model itself is a unit of what is left.
class WrapPolicy {
 public:
  /// `num_elements` are those of the module's parameters, and its children's, that no unit within it has taken.
  using Decide =
      std::function<bool(const torch::nn::Module& module, const std::string& name, std::int64_t num_elements)>;

  /// As a function says. `text` is for messages, and must be the same on every rank.
  WrapPolicy(std::string text, Decide decide);

  bool wraps(const torch::nn::Module& module, const std::string& name, std::int64_t num_elements) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Decide decide_;
};

/// Every module with at least so many parameters.
WrapPolicy wrap_by_size(std::int64_t min_elements = 1000);
/// Every module of one of these types, by name: "torch::nn::LinearImpl", or without namespace and "Impl": "Linear".
WrapPolicy wrap_by_type(const std::vector<std::string>& type_names);
/// The model is one unit.
WrapPolicy wrap_none();

namespace detail {
WrapPolicy wrap_by_type_info(const std::vector<const std::type_info*>& types);
}  // namespace detail

/// Every module of one of these types: `wrap_by_type<BlockImpl>()`.
template <class... Modules>
WrapPolicy wrap_by_type() {
  return detail::wrap_by_type_info({&typeid(Modules)...});
}

}  // namespace tessera
