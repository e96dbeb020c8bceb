#include <tessera/intercept/operator_call.h>

#include <ATen/core/List.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "intercept/schema.h"

namespace tessera::intercept {
namespace {

/// Replaces the tensors of a list, if `visit` wants it for one of them.
void visit_list(c10::IValue& value, std::size_t argument, OperatorCall::Visit visit) {
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    bool is_changed = false;
    for (at::Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      if (at::Tensor other = visit(argument, tensor); other.defined()) {
        tensor = std::move(other);
        is_changed = true;
      }
    }
    if (is_changed) value = c10::IValue(std::move(tensors));
    return;
  }
  // Optional tensors, as indices are.
  const auto elements = value.toListRef();
  c10::List<std::optional<at::Tensor>> tensors;
  bool is_changed = false;
  for (const c10::IValue& element : elements) {
    if (element.isNone()) {
      tensors.push_back(std::nullopt);
      continue;
    }
    if (!element.isTensor()) return;
    at::Tensor tensor = element.toTensor();
    if (tensor.defined()) {
      if (at::Tensor other = visit(argument, tensor); other.defined()) {
        tensor = std::move(other);
        is_changed = true;
      }
    }
    tensors.push_back(std::move(tensor));
  }
  if (is_changed) value = c10::IValue(std::move(tensors));
}

void visit_value(c10::IValue& value, std::size_t index, OperatorCall::Visit visit) {
  if (value.isTensor()) {
    const at::Tensor tensor = value.toTensor();
    if (!tensor.defined()) return;
    if (at::Tensor other = visit(index, tensor); other.defined()) value = c10::IValue(std::move(other));
  } else if (value.isList()) {
    visit_list(value, index, visit);
  }
}

}  // namespace

OperatorCall::OperatorCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
    : op_(op), stack_(stack), num_arguments_(op.schema().arguments().size()), first_(stack.size() - num_arguments_) {}

bool OperatorCall::writes(std::size_t index) const { return writes_argument(op_.schema(), index); }

bool OperatorCall::writes_any() const { return op_.schema().is_mutable(); }

bool OperatorCall::returns_view() const {
  for (const c10::Argument& result : op_.schema().returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

void OperatorCall::for_each_tensor(Visit visit) {
  for (std::size_t i = 0; i < num_arguments_; ++i) visit_value(argument(i), i, visit);
}

void OperatorCall::run() { op_.callBoxed(&stack_); }

void OperatorCall::for_each_result(Visit visit) {
  for (std::size_t i = 0; i < num_results(); ++i) visit_value(result(i), i, visit);
}

void OperatorCall::return_value(c10::IValue value) {
  stack_.resize(first_);
  stack_.push_back(std::move(value));
}

void OperatorCall::return_values(std::vector<c10::IValue> values) {
  stack_.resize(first_);
  for (c10::IValue& value : values) stack_.push_back(std::move(value));
}

void RuleTable::add(std::initializer_list<const char*> names, Rule rule) {
  for (const char* name : names) by_name_.insert_or_assign(name, rule);
}

namespace {

/// Whether it is given a tensor for its result, as add_out() is.
bool writes_elsewhere(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return argument.kwarg_only() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

}  // namespace

RuleTable::Rule RuleTable::find(const c10::OperatorHandle& op) const {
  const c10::FunctionSchema* const schema = &op.schema();
  {
    const std::shared_lock lock(mutex_);
    if (const auto found = found_.find(schema); found != found_.end()) return found->second;
  }
  const auto named = by_name_.find(schema->name());
  const Rule rule = named == by_name_.end() || writes_elsewhere(*schema) ? nullptr : named->second;
  const std::lock_guard lock(mutex_);
  found_.emplace(schema, rule);
  return rule;
}

}  // namespace tessera::intercept
