#include <tessera/intercept/split_product.h>

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
  if (of_a == Cut::kColumns && of_b == Cut::kRows && a.cut->has_indices_of(*b.cut)) {
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

/// Where an operator has the factors of a product, and what it adds.
struct Places {
  std::size_t a;
  std::size_t b;
  std::optional<std::size_t> bias{};
  bool b_is_turned = false;  // [outputs, inputs], as layers have it
};

/// Runs the operator on what a rank computes by itself. Where backward sums the gradient of the first factor over the
/// ranks and `may_split`, the gradient of the second is computed meanwhile.
at::Tensor run_product(OperatorCall& call, const Places& places, Product product, at::Tensor bias,
                       bool may_split = true) {
  const at::Tensor& b = product.b;
  may_split = may_split && b.dim() == 2 && b.requires_grad() && !b.is_complex();
  const auto number = may_split ? number_during_sum(product.a) : std::nullopt;
  if (number) {  // autocast would change them below, where the nodes do not see it
    product.a = in_product_precision(product.a);
    product.b = in_product_precision(product.b);
    if (bias.defined()) bias = in_product_precision(bias);
  }
  call.argument(places.a) = c10::IValue(product.a);
  call.argument(places.b) = c10::IValue(product.b);
  if (places.bias) call.argument(*places.bias) = bias.defined() ? c10::IValue(bias) : c10::IValue();
  if (!number) {
    call.run();
    return std::move(call.result(0)).toTensor();
  }
  at::Tensor result;
  {
    const at::NoGradGuard no_grad;
    call.run();
    result = std::move(call.result(0)).toTensor();
  }
  const at::Tensor weight = places.b_is_turned ? product.b.t() : product.b;
  intercept::connect_split_product(result, product.a, weight, bias, *number);
  return result;
}

bool are_matrices(const Operand& a, const Operand& b) { return a.dim() >= 2 && b.dim() >= 2; }

void matmul(OperatorCall& call) {
  const Operand a = read(call.tensor(0));
  const Operand b = read(call.tensor(1));
  if (!are_matrices(a, b) || call.num_arguments() != 2) return without_rule(call);
  const auto product = plan_product(a, b);
  if (!product) return without_rule(call);
  // The same operator, so that autocast decides as it would.
  at::Tensor local = run_product(call, {.a = 0, .b = 1}, *product, {});
  call.return_value(wrap_result(finished(std::move(local), *product), product->cut));
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
      input.cut->has_indices_of(*weight.cut)) {
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
  const Places places{.a = 0, .b = 1, .bias = 2, .b_is_turned = true};
  at::Tensor local = run_product(call, places, *product, bias && !adds_last ? *bias : at::Tensor());
  at::Tensor result = finished(std::move(local), *product);
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
  const at::Scalar beta = call.argument(3).toScalar();
  const at::Scalar alpha = call.argument(4).toScalar();
  if (product->summed_over) {
    const at::Tensor sum = finished(at::matmul(product->a, product->b), *product);
    const at::Tensor scaled = alpha.equal(1) ? sum : sum * alpha;
    if (beta.equal(0)) return call.return_value(scaled);  // whatever the bias is, NaN too
    return call.return_value(scaled + bias->to(sum.scalar_type()) * beta);
  }
  const bool is_plain_sum = alpha.equal(1) && beta.equal(1);
  at::Tensor local = run_product(call, {.a = 1, .b = 2, .bias = 0}, *product, *bias, is_plain_sum);
  call.return_value(wrap_result(std::move(local), product->cut));
}

}  // namespace

void add_product_rules(intercept::RuleTable& table) {
  table.add({"aten::matmul", "aten::mm", "aten::bmm"}, matmul);
  table.add({"aten::linear"}, linear);
  table.add({"aten::addmm", "aten::baddbmm"}, addmm);
}

}  // namespace tessera::tp
