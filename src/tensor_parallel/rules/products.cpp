#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;

/// Which dimension of a factor is cut, in the words of a product of matrices.
enum class Cut { kNone, kRows, kColumns, kBatch };

Cut cut_in(const Operand& factor) {
  if (!factor.cut) return Cut::kNone;
  if (factor.cut->dim() == factor.dim() - 1) return Cut::kColumns;
  if (factor.cut->dim() == factor.dim() - 2) return Cut::kRows;
  return Cut::kBatch;
}

/// Two factors with which each rank can compute by itself.
struct Product {
  at::Tensor a;
  at::Tensor b;
  CutDataPtr cut;            // of the result; null: it is whole
  CutDataPtr summed_over{};  // the ranks' results must be added up, since their factors are cut so
};

Operand gathered(const Operand& operand) { return {whole(operand), {}}; }

bool same_inner_cut(const Operand& a, const Operand& b) {
  require_one_axis(a.cut, b.cut);
  return a.cut->cut().blocks() == b.cut->cut().blocks() && a.cut->cut().granule() == b.cut->cut().granule() &&
         a.cut->size() == b.cut->size();
}

/// Requires: both have two dimensions at least. Nullopt: the shapes do not fit.
std::optional<Product> plan_product(const Operand& a, const Operand& b) {
  const std::int64_t num_dims = std::max(a.dim(), b.dim());
  if (a.size(a.dim() - 1) != b.size(b.dim() - 2)) return std::nullopt;
  const Cut of_a = cut_in(a);
  const Cut of_b = cut_in(b);
  if (of_a == Cut::kNone && of_b == Cut::kColumns) {
    return Product{enter(a.local, *b.cut), b.local, moved_cut(b.cut, num_dims - 1)};
  }
  if (of_a == Cut::kRows && of_b == Cut::kNone) {
    return Product{a.local, enter(b.local, *a.cut), moved_cut(a.cut, num_dims - 2)};
  }
  if (of_a == Cut::kColumns && of_b == Cut::kRows && same_inner_cut(a, b)) {
    return Product{a.local, b.local, {}, a.cut};
  }
  if (of_a == Cut::kColumns && of_b == Cut::kNone) {
    return Product{a.local, take_part_of(b.local, moved_cut(a.cut, b.dim() - 2)), {}, a.cut};
  }
  if (of_a == Cut::kNone && of_b == Cut::kRows) {
    return Product{take_part_of(a.local, moved_cut(b.cut, a.dim() - 1)), b.local, {}, b.cut};
  }
  if (of_a == Cut::kBatch && of_b != Cut::kRows && of_b != Cut::kColumns && a.cut->size() > 1) {
    const std::int64_t from_back = a.dim() - a.cut->dim();
    if (auto other = fitted(b, a.cut, from_back)) {
      return Product{a.local, std::move(*other), moved_cut(a.cut, num_dims - from_back)};
    }
  }
  if (of_b == Cut::kBatch && of_a == Cut::kNone && b.cut->size() > 1) {
    const std::int64_t from_back = b.dim() - b.cut->dim();
    if (auto other = fitted(a, b.cut, from_back)) {
      return Product{std::move(*other), b.local, moved_cut(b.cut, num_dims - from_back)};
    }
  }
  // One of them must be gathered: the smaller one, if both are cut.
  if (of_a == Cut::kNone && of_b == Cut::kNone) return Product{a.local, b.local, {}};
  if (of_b == Cut::kNone || (of_a != Cut::kNone && a.numel() <= b.numel())) return plan_product(gathered(a), b);
  return plan_product(a, gathered(b));
}

at::Tensor finished(at::Tensor local, const Product& product) {
  return product.summed_over ? sum_over_ranks(std::move(local), *product.summed_over) : local;
}

bool are_matrices(const Operand& a, const Operand& b) { return a.dim() >= 2 && b.dim() >= 2; }

void matmul(OperatorCall& call) {
  const Operand a = read(call.tensor(0));
  const Operand b = read(call.tensor(1));
  if (!are_matrices(a, b) || call.num_arguments() != 2) return without_rule(call);
  const auto product = plan_product(a, b);
  if (!product) return without_rule(call);
  // The same operator, so that autocast decides as it would.
  call.argument(0) = c10::IValue(product->a);
  call.argument(1) = c10::IValue(product->b);
  call.run();
  call.return_value(wrap_result(finished(std::move(call.result(0)).toTensor(), *product), product->cut));
}

/// A bias as what is added to a result that is cut so.
std::optional<at::Tensor> bias_for(const Operand& bias, const CutDataPtr& cut, std::int64_t num_dims) {
  if (!cut) return whole(bias);
  return fitted(bias, cut, num_dims - cut->dim());
}

/// As plan_product(), with the second factor turned around, as a layer has its weight: [outputs, inputs]. What plans
/// make of layers is decided without turning it.
std::optional<Product> plan_layer(const Operand& input, const Operand& weight) {
  const std::int64_t last = input.dim() - 1;
  const bool fits = input.size(last) == weight.size(1);
  if (fits && !input.cut && weight.cut && weight.cut->dim() == 0) {
    return Product{enter(input.local, *weight.cut), weight.local, moved_cut(weight.cut, last)};
  }
  if (fits && input.cut && input.cut->dim() == last && weight.cut && weight.cut->dim() == 1 &&
      same_inner_cut(input, weight)) {
    return Product{input.local, weight.local, {}, input.cut};
  }
  const CutDataPtr turned = weight.cut ? moved_cut(weight.cut, 1 - weight.cut->dim()) : CutDataPtr();
  auto product = plan_product(input, {weight.local.t(), turned});
  if (product) product->b = product->b.t();
  return product;
}

void linear(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  const Operand weight = read(call.tensor(1));
  if (input.dim() < 2 || weight.dim() != 2) return without_rule(call);
  const auto product = plan_layer(input, weight);
  if (!product) return without_rule(call);
  const at::Tensor given = optional_tensor(call, 2);
  std::optional<at::Tensor> bias;
  if (given.defined()) {
    bias = bias_for(read(given), product->cut, input.dim());
    if (!bias) return without_rule(call);
  }
  const bool adds_last = product->summed_over && bias;  // else each rank would add it
  call.argument(0) = c10::IValue(product->a);
  call.argument(1) = c10::IValue(product->b);
  call.argument(2) = bias && !adds_last ? c10::IValue(*bias) : c10::IValue();
  call.run();
  at::Tensor result = finished(std::move(call.result(0)).toTensor(), *product);
  if (adds_last) result = result + bias->to(result.scalar_type());
  call.return_value(wrap_result(std::move(result), product->cut));
}

/// beta * bias + alpha * (a x b), of two or three dimensions.
void addmm(OperatorCall& call) {
  const Operand a = read(call.tensor(1));
  const Operand b = read(call.tensor(2));
  if (!are_matrices(a, b) || call.num_arguments() != 5) return without_rule(call);
  const auto product = plan_product(a, b);
  if (!product) return without_rule(call);
  const auto bias = bias_for(read(call.tensor(0)), product->cut, a.dim());
  if (!bias) return without_rule(call);
  if (product->summed_over) {
    const at::Scalar beta = call.argument(3).toScalar();
    const at::Scalar alpha = call.argument(4).toScalar();
    const at::Tensor sum = finished(at::matmul(product->a, product->b), *product);
    const at::Tensor scaled = alpha.equal(1) ? sum : sum * alpha;
    if (beta.equal(0)) return call.return_value(scaled);  // whatever the bias is, NaN too
    return call.return_value(scaled + bias->to(sum.scalar_type()) * beta);
  }
  call.argument(0) = c10::IValue(*bias);
  call.argument(1) = c10::IValue(product->a);
  call.argument(2) = c10::IValue(product->b);
  call.run();
  call.return_value(wrap_result(call.result(0).toTensor(), product->cut));
}

}  // namespace

void add_product_rules(intercept::RuleTable& table) {
  table.add({"aten::matmul", "aten::mm", "aten::bmm"}, matmul);
  table.add({"aten::linear"}, linear);
  table.add({"aten::addmm", "aten::baddbmm"}, addmm);
}

}  // namespace tessera::tp
