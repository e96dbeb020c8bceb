#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <initializer_list>
#include <map>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::intercept {

/// One call of an operator. The arguments lie on a stack; results replace them.
class OperatorCall {
 public:
  OperatorCall(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  const c10::OperatorHandle& op() const { return op_; }
  const std::string& name() const { return op_.schema().name(); }  ///< "aten::add"
  const std::string& overload() const { return op_.schema().overload_name(); }

  std::size_t num_arguments() const { return num_arguments_; }
  c10::IValue& argument(std::size_t index) { return stack_[first_ + index]; }
  at::Tensor tensor(std::size_t index) { return argument(index).toTensor(); }
  /// Whether the operator changes that argument.
  bool writes(std::size_t index) const;
  bool writes_any() const;
  /// Whether a result shares memory with an argument that the operator does not change.
  bool returns_view() const;

  /// Calls `visit` for each defined tensor among the arguments, also in lists. A defined tensor that it returns takes
  /// the place of the argument.
  using Visit = c10::function_ref<at::Tensor(std::size_t argument, const at::Tensor& tensor)>;
  void for_each_tensor(Visit visit);

  /// Runs the operator with the arguments as they are now.
  void run();
  std::size_t num_results() const { return op_.schema().returns().size(); }
  c10::IValue& result(std::size_t index) { return stack_[stack_.size() - num_results() + index]; }
  /// Calls `visit` for each defined tensor among the results, as for_each_tensor().
  void for_each_result(Visit visit);
  /// The call is done, with this one result.
  void return_value(c10::IValue value);
  /// The same for any number of results.
  void return_values(std::vector<c10::IValue> values);

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::size_t num_arguments_;
  std::size_t first_;
};

/// Which function of a kind runs an operator.
/// Thread-safety: find() from any thread, once all rules are there.
class RuleTable {
 public:
  using Rule = void (*)(OperatorCall& call);

  /// For all overloads of these operators, "aten::add", but those that are given a tensor for their result.
  void add(std::initializer_list<const char*> names, Rule rule);
  /// Null: there is none.
  Rule find(const c10::OperatorHandle& op) const;

 private:
  std::map<std::string, Rule, std::less<>> by_name_;
  mutable std::shared_mutex mutex_;
  mutable std::unordered_map<const c10::FunctionSchema*, Rule> found_;  // names are compared once
};

}  // namespace tessera::intercept
