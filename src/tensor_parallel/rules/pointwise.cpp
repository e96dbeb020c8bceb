#include <ATen/ATen.h>
#include <ATen/DimVector.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <utility>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;

/// The cut that the result has: that of a written tensor, else of the largest.
struct Reference {
  CutDataPtr cut;
  std::int64_t from_back = 0;
  at::Tensor written;  // undefined: nothing is
  bool fits = true;
};

Reference find_reference(OperatorCall& call) {
  Reference reference;
  std::int64_t most = -1;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    CutDataPtr cut = cut_of(tensor);
    if (call.writes(index)) {
      if (!cut || reference.written.defined()) reference.fits = false;
      reference.written = tensor;
    } else if (!cut || reference.written.defined()) {
      return {};
    }
    // A dimension of one index is one that others may broadcast along; it can only be gathered.
    if (!cut || (cut->size() == 1 && !call.writes(index))) return {};
    const std::int64_t count = call.writes(index) ? INT64_MAX : tensor.numel();
    if (count <= most) return {};
    most = count;
    reference.from_back = tensor.dim() - cut->dim();
    reference.cut = std::move(cut);
    return {};
  });
  reference.fits = reference.fits && reference.cut;
  return reference;
}

/// Whether an argument leaves it to the next ones in which order the result lies in memory.
bool leaves_order_open(const at::Tensor& tensor, std::int64_t num_dims) {
  if (tensor.dim() != num_dims) return true;
  for (std::int64_t i = 0; i < num_dims; ++i) {
    if (tensor.size(i) == 1 || tensor.stride(i) == 0) return true;
  }
  return false;
}

/// The strides of the result in one process: TensorIterator says them, of tensors without bytes.
at::DimVector strides_of_result(OperatorCall& call) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).add_owned_output(at::Tensor());
  config.declare_static_dtype_and_device(at::kFloat, at::kMeta);
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    config.add_owned_const_input(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), at::kFloat));
    return {};
  });
  at::TensorIterator iterator = config.build();
  return at::DimVector(iterator.output().strides());
}

/// Strides with the order of memory that the result has in one process.
at::DimVector order_of_result(OperatorCall& call, std::int64_t num_dims) {
  at::DimVector like;
  bool is_open = true;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    if (!like.empty() || tensor.dim() == 0) return {};
    like = at::DimVector(tensor.strides());
    is_open = leaves_order_open(tensor, num_dims);
    return {};
  });
  return is_open ? strides_of_result(call) : like;
}

/// Operators that compute each element of the result from the elements at its place.
void pointwise(OperatorCall& call) {
  const Reference reference = find_reference(call);
  if (!reference.fits) return without_rule(call);
  bool fits = true;
  at::Tensor written_inner;
  c10::SmallVector<at::Tensor, 4> locals;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    if (!fits) return {};
    if (call.writes(index)) {
      locals.push_back(written_inner = intercept::inner_for_write(tensor));
      return {};
    }
    if (tensor.dim() == 0 && !tensor.requires_grad()) {
      locals.push_back(tensor);
      return {};
    }
    if (auto local = fitted(read(tensor), reference.cut, reference.from_back)) {
      locals.push_back(std::move(*local));
    } else {
      fits = false;
    }
    return {};
  });
  if (!fits) return without_rule(call);
  std::int64_t num_dims = 0;
  for (const at::Tensor& local : locals) num_dims = std::max(num_dims, local.dim());
  const bool writes = reference.written.defined();
  const at::DimVector like = writes ? at::DimVector() : order_of_result(call, num_dims);
  std::size_t next = 0;
  call.for_each_tensor([&](std::size_t, const at::Tensor&) { return locals[next++]; });
  call.run();
  if (writes) after_write(reference.written, written_inner);
  call.for_each_result([&](std::size_t, const at::Tensor& local) -> at::Tensor {
    if (written_inner.defined() && local.is_same(written_inner)) return reference.written;
    return wrap_dense(local, moved_cut(reference.cut, local.dim() - reference.from_back), like);
  });
}

void where(OperatorCall& call) {
  if (call.num_arguments() == 1) return without_rule(call);  // the places of what is true
  pointwise(call);
}

}  // namespace

void add_pointwise_rules(intercept::RuleTable& table) {
  table.add({"aten::add",    "aten::add_",       "aten::sub",        "aten::sub_",  "aten::mul",     "aten::mul_",
             "aten::div",    "aten::div_",       "aten::rsub",       "aten::neg",   "aten::neg_",    "aten::pow",
             "aten::pow_",   "aten::square",     "aten::square_",    "aten::sqrt",  "aten::sqrt_",   "aten::rsqrt",
             "aten::rsqrt_", "aten::exp",        "aten::exp_",       "aten::exp2",  "aten::expm1",   "aten::log",
             "aten::log_",   "aten::log1p",      "aten::log2",       "aten::abs",   "aten::abs_",    "aten::sign",
             "aten::sin",    "aten::cos",        "aten::tanh",       "aten::tanh_", "aten::sigmoid", "aten::sigmoid_",
             "aten::erf",    "aten::reciprocal", "aten::reciprocal_"},
            pointwise);
  table.add({"aten::where"}, where);
  table.add({"aten::gelu",       "aten::gelu_",       "aten::relu",      "aten::relu_",      "aten::relu6",
             "aten::relu6_",     "aten::silu",        "aten::silu_",     "aten::leaky_relu", "aten::leaky_relu_",
             "aten::elu",        "aten::elu_",        "aten::selu",      "aten::celu",       "aten::hardswish",
             "aten::hardswish_", "aten::hardtanh",    "aten::hardtanh_", "aten::mish",       "aten::softplus",
             "aten::softsign",   "aten::hardsigmoid", "aten::threshold", "aten::threshold_", "aten::logsigmoid"},
            pointwise);
  table.add({"aten::clamp",       "aten::clamp_",      "aten::clamp_min",    "aten::clamp_min_",  "aten::clamp_max",
             "aten::clamp_max_",  "aten::maximum",     "aten::minimum",      "aten::fmod",        "aten::remainder",
             "aten::eq",          "aten::ne",          "aten::lt",           "aten::le",          "aten::gt",
             "aten::ge",          "aten::logical_and", "aten::logical_or",   "aten::logical_not", "aten::logical_xor",
             "aten::bitwise_and", "aten::bitwise_or",  "aten::bitwise_not",  "aten::isnan",       "aten::isinf",
             "aten::isfinite",    "aten::masked_fill", "aten::masked_fill_", "aten::floor",       "aten::ceil",
             "aten::round",       "aten::trunc",       "aten::lerp",         "aten::lerp_",       "aten::addcmul",
             "aten::addcmul_",    "aten::addcdiv",     "aten::addcdiv_",     "aten::zero_",       "aten::fill_",
             "aten::copy_",       "aten::nan_to_num",  "aten::nan_to_num_",  "aten::atan2"},
            pointwise);
}

}  // namespace tessera::tp
