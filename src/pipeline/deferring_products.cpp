#include "pipeline/deferring_products.h"

#include <tessera/intercept/acting_tensor.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace tessera::pp {
namespace {

using intercept::OperatorCall;

/// Where an operator has the factors of a product, and what it adds.
struct Product {
  std::string_view op;
  std::size_t input;
  std::size_t weight;
  std::optional<std::size_t> bias{};
  bool weight_is_turned = false;  // [outputs, inputs], as layers have it
};
constexpr std::array<Product, 4> kProducts{
    {{"aten::linear", 0, 1, 2, true}, {"aten::matmul", 0, 1}, {"aten::mm", 0, 1}, {"aten::addmm", 1, 2, 0}}};

}  // namespace

bool run_deferring(OperatorCall& call, const std::shared_ptr<intercept::DeferredGradients>& deferred) {
  const auto* const found = std::ranges::find_if(kProducts, [&](const Product& one) { return one.op == call.name(); });
  if (found == kProducts.end() || call.writes_any() || !at::GradMode::is_enabled()) return false;
  const Product& product = *found;
  at::Tensor input = call.tensor(product.input);
  at::Tensor weight = call.tensor(product.weight);
  if (input.dim() < 2 || weight.dim() != 2 || weight.is_complex() || !input.requires_grad()) return false;
  if (intercept::acting_data(input) || intercept::acting_data(weight)) return false;
  if (product.op == "aten::addmm" && !(call.argument(3).toScalar().equal(1) && call.argument(4).toScalar().equal(1))) {
    return false;
  }
  if (!weight.requires_grad() || !intercept::leads_to_a_parameter_alone(weight)) return false;
  at::Tensor bias;
  if (product.bias && call.argument(*product.bias).isTensor()) bias = call.tensor(*product.bias);
  if (bias.defined() && bias.requires_grad() && !intercept::leads_to_a_parameter_alone(bias)) return false;
  // Autocast would change them below, where the nodes do not see it.
  input = intercept::in_product_precision(input);
  weight = intercept::in_product_precision(weight);
  call.argument(product.input) = c10::IValue(input);
  call.argument(product.weight) = c10::IValue(weight);
  if (bias.defined()) {
    bias = intercept::in_product_precision(bias);
    call.argument(*product.bias) = c10::IValue(bias);
  }
  {
    const at::NoGradGuard no_grad;
    call.run();
  }
  at::Tensor result = std::move(call.result(0)).toTensor();
  intercept::connect_deferred_product(result, input, product.weight_is_turned ? weight.t() : weight, bias, deferred);
  call.result(0) = c10::IValue(std::move(result));
  return true;
}

}  // namespace tessera::pp
