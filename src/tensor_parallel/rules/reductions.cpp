#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;
using Dims = std::vector<std::int64_t>;

/// The dimensions that the operator works on; nullopt: names, or dimensions that do not exist.
std::optional<Dims> dims_of(OperatorCall& call, std::int64_t num_dims) {
  Dims dims;
  auto place = argument_named(call, "dim");
  if (!place) place = argument_named(call, "dims");
  if (place && call.argument(*place).isInt()) {
    dims = {call.argument(*place).toInt()};
  } else if (place && call.argument(*place).isIntList()) {
    dims = call.argument(*place).toIntVector();
  } else if (place && !call.argument(*place).isNone()) {
    return std::nullopt;
  }
  if (dims.empty()) {
    dims.resize(static_cast<std::size_t>(num_dims));
    std::iota(dims.begin(), dims.end(), 0);
  }
  for (std::int64_t& dim : dims) {
    dim = from_front(dim, num_dims);
    if (dim < 0 || dim >= num_dims) return std::nullopt;
  }
  return dims;
}

bool keeps_dims(OperatorCall& call) {
  const auto place = argument_named(call, "keepdim");
  return place && call.argument(*place).isBool() && call.argument(*place).toBool();
}

CutDataPtr reduced_cut(const Operand& input, const Dims& dims, bool keeps) {
  if (keeps) return input.cut;
  const auto num_before = std::ranges::count_if(dims, [&](std::int64_t dim) { return dim < input.cut->dim(); });
  return moved_cut(input.cut, input.cut->dim() - num_before);
}

bool contains(const Dims& dims, std::int64_t dim) { return std::ranges::find(dims, dim) != dims.end(); }

/// Operators whose result has the shape of the input, and that work along dimensions.
void along_dims(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  if (!input.cut || !argument_named(call, "dim")) return without_rule(call);
  const auto dims = dims_of(call, input.dim());
  if (!dims || contains(*dims, input.cut->dim())) return without_rule(call);
  run_local(call, input, input.cut);
}

/// Operators that reduce dimensions; over the one that is cut they need all of it.
void reduce(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  if (!input.cut) return without_rule(call);
  const auto place = argument_named(call, "dim");
  if (!place || call.argument(*place).isNone()) return without_rule(call);
  const auto dims = dims_of(call, input.dim());
  if (!dims || contains(*dims, input.cut->dim())) return without_rule(call);
  run_local(call, input, reduced_cut(input, *dims, keeps_dims(call)));
}

/// Sums and means: over the dimension that is cut, the ranks' sums are added up.
void sum_or_mean(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  const auto dims = dims_of(call, input.dim());
  if (!input.cut || !dims) return without_rule(call);
  if (!contains(*dims, input.cut->dim())) return run_local(call, input, reduced_cut(input, *dims, keeps_dims(call)));
  if (call.name() == "aten::sum") {
    call.argument(0) = c10::IValue(input.local);
    call.run();
    return call.return_value(sum_over_ranks(std::move(call.result(0)).toTensor(), *input.cut));
  }
  const auto dtype_place = argument_named(call, "dtype");
  const bool has_dtype = dtype_place && call.argument(*dtype_place).isInt();
  const at::ScalarType dtype = has_dtype ? call.argument(*dtype_place).toScalarType() : input.local.scalar_type();
  if (!c10::isFloatingType(dtype) && !c10::isComplexType(dtype)) return without_rule(call);  // which says why not
  std::int64_t count = 1;
  for (const std::int64_t dim : *dims) count *= input.size(dim);
  // Summed in at least single precision, as mean() does inside.
  const at::ScalarType wide = dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
  const at::Tensor sum = at::sum(input.local, *dims, keeps_dims(call), wide);
  call.return_value((sum_over_ranks(sum, *input.cut) / count).to(dtype));
}

/// norm(self, p) and linalg_vector_norm(self, ord, dim, keepdim, dtype), of all elements.
void norm(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  const bool of_all =
      call.num_arguments() == 2 || (call.name() == "aten::linalg_vector_norm" && call.argument(2).isNone() &&
                                    !keeps_dims(call) && call.argument(4).isNone());
  const bool needs_gradient = at::GradMode::is_enabled() && input.local.requires_grad();
  const c10::IValue& given = call.argument(1);
  const double power = given.isNone() ? 2 : given.isScalar() ? given.toScalar().toDouble() : NAN;
  if (!of_all || needs_gradient || input.local.is_complex() || !(power == 1 || power == 2)) return without_rule(call);
  // As norm() does inside: a square may be outside of the range of a type of 16 bits.
  const at::ScalarType dtype = input.local.scalar_type();
  const bool is_narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  const at::Tensor part = input.local.norm(power, is_narrow ? at::kFloat : dtype);
  const at::Tensor norm =
      power == 1 ? sum_over_ranks(part, *input.cut) : sum_over_ranks(part.square(), *input.cut).sqrt();
  call.return_value(norm.to(in_full_precision(input.local).scalar_type()));
}

}  // namespace

void add_reduction_rules(intercept::RuleTable& table) {
  table.add({"aten::sum", "aten::mean"}, sum_or_mean);
  table.add({"aten::amax", "aten::amin", "aten::max", "aten::min", "aten::argmax", "aten::argmin", "aten::prod",
             "aten::any", "aten::all", "aten::logsumexp", "aten::var", "aten::std"},
            reduce);
  table.add({"aten::cumsum", "aten::cumprod", "aten::sort", "aten::argsort", "aten::logcumsumexp"}, along_dims);
  table.add({"aten::norm", "aten::linalg_vector_norm"}, norm);
}

}  // namespace tessera::tp
