#include "tensor_parallel/rules/operands.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <utility>
#include <vector>

#include "tensor_parallel/collectives.h"

namespace tessera::tp {

using intercept::OperatorCall;

bool same_from_back(const Operand& a, const Operand& b) {
  if (!a.cut || !b.cut) return false;
  return a.cut->has_indices_of(*b.cut) && a.dim() - a.cut->dim() == b.dim() - b.cut->dim();
}

at::Tensor whole(const Operand& operand) {
  return operand.cut ? gather_whole(operand.local, operand.cut) : operand.local;
}

std::optional<at::Tensor> fitted(const Operand& operand, const CutDataPtr& cut, std::int64_t from_back) {
  const std::int64_t dim = operand.dim() - from_back;
  if (operand.cut) {
    if (operand.cut->has_indices_of(*cut) && operand.cut->dim() == dim) return operand.local;
    return fitted({gather_whole(operand.local, operand.cut), {}}, cut, from_back);
  }
  if (dim < 0 || operand.local.size(dim) == 1) {
    // A tensor of one index that is cut has a part of one or none.
    if (dim >= 0 && cut->size() == 1) return take_part_of(operand.local, moved_cut(cut, dim));
    return enter(operand.local, *cut);
  }
  if (operand.local.size(dim) != cut->size()) return std::nullopt;
  return take_part_of(operand.local, moved_cut(cut, dim));
}

bool has_empty_part(const CutData& cut) {
  return cut.cut().in_block(cut.size(), cut.axis().size(), cut.axis().size() - 1).size == 0;
}

at::Tensor with_one_index(const at::Tensor& local, std::int64_t dim) {
  if (local.size(dim) > 0) return local;
  std::vector<std::int64_t> added(static_cast<std::size_t>(2 * (local.dim() - dim)), 0);  // the last dimension first
  added.back() = 1;
  return at::constant_pad_nd(local, added);
}

at::Tensor in_full_precision(const at::Tensor& tensor) {
  if (!at::autocast::is_autocast_enabled(tensor.device().type())) return tensor;
  return tensor.is_floating_point() && tensor.scalar_type() != at::kDouble ? tensor.to(at::kFloat) : tensor;
}

std::optional<std::size_t> argument_named(const OperatorCall& call, const std::string& name) {
  const auto place = call.op().schema().argumentIndexWithName(name);
  return place ? std::optional<std::size_t>(static_cast<std::size_t>(*place)) : std::nullopt;
}

void after_write(const at::Tensor& written, const at::Tensor& local) {
  if (intercept::is_wrapper(written)) {
    intercept::set_inner(written, local, written.sizes(), written.strides());
  } else if (local.requires_grad() && !written.requires_grad()) {
    throw ConfigError("something with a gradient is written to a detached parameter (of " +
                      *cut_of(written)->parameter() + "), and would be lost: clone() it first");
  }
}

at::Tensor optional_tensor(OperatorCall& call, std::size_t index) {
  const c10::IValue& value = call.argument(index);
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

void run_local(OperatorCall& call, const Operand& input, const CutDataPtr& result) {
  bool is_first = true;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    if (std::exchange(is_first, false)) return input.local;
    return whole_of(tensor);
  });
  call.run();
  call.for_each_result([&](std::size_t, const at::Tensor& local) { return wrap_result(local, result); });
}

}  // namespace tessera::tp
