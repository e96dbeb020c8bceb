#include "recompute/memory/cheap_operators.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace tessera::recomputation {
namespace {

constexpr std::array<std::string_view, 68> kCheap{"_conj_physical",
                                                  "_fused_rms_norm",
                                                  "_log_softmax",
                                                  "_softmax",
                                                  "_to_copy",
                                                  "abs",
                                                  "add",
                                                  "addcdiv",
                                                  "addcmul",
                                                  "alpha_dropout",
                                                  "batch_norm",
                                                  "celu",
                                                  "clamp",
                                                  "clamp_max",
                                                  "clamp_min",
                                                  "clone",
                                                  "contiguous",
                                                  "cos",
                                                  "div",
                                                  "dropout",
                                                  "elu",
                                                  "erf",
                                                  "exp",
                                                  "feature_dropout",
                                                  "gelu",
                                                  "glu",
                                                  "group_norm",
                                                  "hardshrink",
                                                  "hardsigmoid",
                                                  "hardswish",
                                                  "hardtanh",
                                                  "instance_norm",
                                                  "layer_norm",
                                                  "leaky_relu",
                                                  "lerp",
                                                  "log_sigmoid",
                                                  "log_softmax",
                                                  "masked_fill",
                                                  "mish",
                                                  "mul",
                                                  "native_batch_norm",
                                                  "native_dropout",
                                                  "native_group_norm",
                                                  "native_layer_norm",
                                                  "neg",
                                                  "pow",
                                                  "prelu",
                                                  "relu",
                                                  "relu6",
                                                  "reshape",
                                                  "rms_norm",
                                                  "rrelu",
                                                  "rsqrt",
                                                  "rsub",
                                                  "selu",
                                                  "sigmoid",
                                                  "silu",
                                                  "sin",
                                                  "softmax",
                                                  "softplus",
                                                  "softshrink",
                                                  "sqrt",
                                                  "square",
                                                  "sub",
                                                  "tanh",
                                                  "threshold",
                                                  "to",
                                                  "where"};
static_assert(std::is_sorted(kCheap.begin(), kCheap.end()));

constexpr std::string_view kPrefix = "aten::";

/// Which give a tensor other memory or another history.
constexpr std::array<std::string_view, 8> kAboutItself{
    "aten::_resize_output_", "aten::detach_", "aten::requires_grad_", "aten::resize_",
    "aten::resize_as_",      "aten::set_",    "aten::set_data",       "aten::swap"};

}  // namespace

bool is_cheap(const intercept::TracedOperator& op) {
  const std::string_view name = op.name();
  return op.written == 0 && name.starts_with(kPrefix) &&
         std::binary_search(kCheap.begin(), kCheap.end(), name.substr(kPrefix.size()));
}

bool is_dropout(const intercept::TracedOperator& op) {
  return op.name() == "aten::dropout" || op.name() == "aten::native_dropout";
}

bool may_be_replayed(const intercept::TracedOperator& op, c10::ArrayRef<c10::IValue> arguments) {
  if (std::ranges::find(kAboutItself, op.name()) != kAboutItself.end()) return false;
  return std::ranges::none_of(arguments, [](const c10::IValue& one) { return one.isGenerator() || one.isStorage(); });
}

std::pair<std::size_t, std::size_t> running_statistics(const intercept::TracedOperator& op,
                                                       c10::ArrayRef<c10::IValue> arguments) {
  const std::string& name = op.name();
  if (name != "aten::batch_norm" && name != "aten::native_batch_norm" && name != "aten::instance_norm") return {0, 0};
  // Input, weight, bias, mean, variance, and whether they are those of the batch.
  return arguments.size() > 5 && arguments[5].isBool() && arguments[5].toBool()
             ? std::pair<std::size_t, std::size_t>(3, 5)
             : std::pair<std::size_t, std::size_t>(0, 0);
}

}  // namespace tessera::recomputation
