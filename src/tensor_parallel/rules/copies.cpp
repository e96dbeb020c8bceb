#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <c10/util/strides.h>

#include <optional>
#include <utility>
#include <vector>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;

/// The result of contiguous(memory_format).
at::Tensor wrap_formatted(const at::Tensor& local, const Operand& input, at::MemoryFormat format) {
  const std::vector<std::int64_t> sizes = input.sizes();
  if (format == at::MemoryFormat::ChannelsLast) return wrap(local, input.cut, c10::get_channels_last_strides_2d(sizes));
  if (format == at::MemoryFormat::ChannelsLast3d) {
    return wrap(local, input.cut, c10::get_channels_last_strides_3d(sizes));
  }
  return wrap(local, input.cut, c10::contiguous_strides(sizes));
}

void share_version(const at::Tensor& alias, const at::Tensor& source) {
  alias.unsafeGetTensorImpl()->set_version_counter(source.unsafeGetTensorImpl()->version_counter());
}

/// Copies, conversions and new tensors of the same shape. Those of a parameter have bytes, as the parameter has: an
/// optimizer's state is made so.
void same_shape(OperatorCall& call) {
  const at::Tensor source = call.tensor(0);
  const Operand input = read(source);
  if (!input.cut) {  // another tensor gives the type
    call.for_each_tensor([](std::size_t, const at::Tensor& tensor) { return read(tensor).local; });
    return call.run();
  }
  const bool is_marked = !intercept::is_wrapper(source);
  const auto format =
      call.name() == "aten::contiguous" ? call.argument(1).toMemoryFormat() : at::MemoryFormat::Contiguous;
  bool is_first = true;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    return std::exchange(is_first, false) ? input.local : read(tensor).local;
  });
  call.run();
  call.for_each_result([&](std::size_t, const at::Tensor& local) -> at::Tensor {
    const bool must_copy = call.name() == "aten::contiguous";  // else it would not have been called
    if (local.is_same(input.local) && !must_copy) return source;
    // With bytes only where no history can be written to it: an optimizer's state is made so, and a detached parameter.
    const bool has_bytes = is_marked && (!at::GradMode::is_enabled() || call.name() == "aten::detach");
    if (!has_bytes && must_copy) {
      return wrap_formatted(local.is_alias_of(input.local) ? local.clone() : local, input, format);
    }
    if (!has_bytes && local.is_alias_of(input.local)) return wrap(local, input.cut, source.strides());
    if (!has_bytes) return wrap_dense(local, input.cut, source.strides());
    at::Tensor held = make_held(local, input.cut, source);
    // It shares the memory, so also the count of writes.
    if (local.is_alias_of(input.local)) share_version(held, source);
    return held;
  });
}

/// A new tensor whose shape is given, as new_zeros(): whole.
void new_tensor(OperatorCall& call) {
  call.argument(0) = c10::IValue(read(call.tensor(0)).local);
  call.run();
}

/// As a parameter's gradient, of the same shape, it is cut in the same way: autograd copies those so. It also does so
/// with gradients that pass a write to a view, and goes on with strides and offsets into memory: for that it is whole.
void new_strided(OperatorCall& call) {
  const at::Tensor source = call.tensor(0);
  const Operand input = read(source);
  if (intercept::is_wrapper(source) || call.argument(1).toIntVector() != source.sizes()) return new_tensor(call);
  const auto strides = call.argument(2).toIntVector();
  call.argument(0) = c10::IValue(input.local);
  call.argument(1) = c10::IValue(input.local.sizes().vec());
  call.argument(2) = c10::IValue(at::IntArrayRef(c10::contiguous_strides(input.local.sizes())).vec());
  call.run();
  const at::Tensor local = call.result(0).toTensor();
  call.return_value(at::GradMode::is_enabled() ? wrap(local, input.cut)
                                               : intercept::make_part(local, input.cut, source.sizes(), strides));
}

void cat(OperatorCall& call) {
  const auto tensors = call.argument(0).toTensorVector();
  std::vector<Operand> operands;
  const Operand* reference = nullptr;
  operands.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    operands.push_back(read(tensor));
    if (!reference && operands.back().cut) reference = &operands.back();
  }
  const bool stacks = call.name() == "aten::stack";
  const std::int64_t num_dims = reference->dim();
  const std::int64_t dim = from_front(call.argument(1).toInt(), num_dims + (stacks ? 1 : 0));
  if (!stacks && dim == reference->cut->dim()) return without_rule(call);
  const std::int64_t from_back = num_dims - reference->cut->dim();
  std::vector<at::Tensor> locals;
  for (const Operand& operand : operands) {
    // Neither operator broadcasts.
    if (operand.dim() != num_dims || operand.size(reference->cut->dim()) != reference->cut->size()) {
      return without_rule(call);
    }
    auto local = fitted(operand, reference->cut, from_back);
    if (!local) return without_rule(call);
    locals.push_back(std::move(*local));
  }
  const CutDataPtr cut =
      stacks && dim <= reference->cut->dim() ? moved_cut(reference->cut, reference->cut->dim() + 1) : reference->cut;
  call.argument(0) = c10::IValue(locals);
  call.run();
  call.for_each_result([&](std::size_t, const at::Tensor& local) { return wrap(local, cut); });
}

void index_select(OperatorCall& call) {
  if (!cut_of(call.tensor(0))) return without_rule(call);
  const Operand input = read(call.tensor(0));
  if (!call.argument(1).isInt() || from_front(call.argument(1).toInt(), input.dim()) == input.cut->dim()) {
    return without_rule(call);
  }
  run_local(call, input, input.cut);
}

bool same_or_whole(const Operand& operand, const Operand& parameter) {
  return !parameter.cut ? !operand.cut : same_from_back(operand, parameter);
}

/// Fused steps of optimizers: each list has a tensor for each parameter. What is written is cut as the parameter is; a
/// gradient may be whole, as a custom function returns it.
void fused_step(OperatorCall& call) {
  std::vector<Operand> parameters;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    if (index == 0) parameters.push_back(read(tensor));
    return {};
  });
  const auto steps = argument_named(call, "state_steps");
  std::size_t last = 0;
  std::size_t place = 0;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    place = index == last ? place : 0;
    last = index;
    const bool is_written = call.writes(index) && index != 1 && cut_of(tensor);
    const Operand operand = is_written ? Operand{intercept::inner_for_write(tensor), cut_of(tensor)} : read(tensor);
    if (index == steps || !call.argument(index).isTensorList()) return operand.local;  // not of a parameter's shape
    const Operand& parameter = parameters.at(place++);
    // The kernel processes memory from the first element to the last and ignores strides.
    const bool lies_so = operand.local.strides() == parameter.local.strides();
    if (lies_so && operand.local.sizes() == parameter.local.sizes() && same_or_whole(operand, parameter)) {
      return operand.local;
    }
    const bool is_gradient = index == 1;  // listed as written, since it may be divided by a scale
    std::optional<at::Tensor> fits;
    if (is_gradient && !parameter.cut) fits = whole(operand);
    if (is_gradient && parameter.cut) fits = fitted(operand, parameter.cut, parameter.dim() - parameter.cut->dim());
    if (!fits || fits->sizes() != parameter.local.sizes()) {
      throw ConfigError(call.name() + " was given a tensor that is " +
                        (operand.cut ? operand.cut->cut().text() : "whole") + " for a parameter that is " +
                        (parameter.cut ? parameter.cut->cut().text() : "whole"));
    }
    return at::empty_like(parameter.local).copy_(*fits);
  });
  call.run();
}

}  // namespace

void add_copy_rules(intercept::RuleTable& table) {
  table.add({"aten::clone", "aten::contiguous", "aten::detach", "aten::alias", "aten::to", "aten::_to_copy",
             "aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::full_like", "aten::resolve_conj",
             "aten::resolve_neg", "aten::lift", "aten::lift_fresh", "aten::lift_fresh_copy", "aten::cpu", "aten::cuda",
             "aten::positive", "aten::type_as"},
            same_shape);
  table.add({"aten::new_zeros", "aten::new_ones", "aten::new_empty", "aten::new_full"}, new_tensor);
  table.add({"aten::new_empty_strided"}, new_strided);
  table.add({"aten::cat", "aten::concat", "aten::stack"}, cat);
  table.add({"aten::index_select"}, index_select);
  table.add({"aten::_fused_adamw_", "aten::_fused_adam_", "aten::_fused_sgd_", "aten::_fused_adagrad_"}, fused_step);
}

}  // namespace tessera::tp
