#include <ATen/ATen.h>

#include <optional>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;

bool same_cut(const Operand& input, std::int64_t channel_dim, const Operand& weight, std::int64_t weight_dim) {
  if (!input.cut || !weight.cut) return false;
  return input.cut->has_indices_of(*weight.cut) && input.cut->dim() == channel_dim && weight.cut->dim() == weight_dim;
}

/// Runs on local tensors. The bias of a sum over ranks is added once, after it.
void run(OperatorCall& call, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
         const CutDataPtr& result, const CutDataPtr& summed_over, std::int64_t channel_dim) {
  const bool adds_last = summed_over && bias.defined();
  call.argument(0) = c10::IValue(input);
  call.argument(1) = c10::IValue(weight);
  call.argument(2) = bias.defined() && !adds_last ? c10::IValue(bias) : c10::IValue();
  call.run();
  at::Tensor local = std::move(call.result(0)).toTensor();
  if (summed_over) local = sum_over_ranks(std::move(local), *summed_over);
  if (adds_last) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(local.dim()), 1);
    sizes[static_cast<std::size_t>(channel_dim)] = bias.size(0);
    local = local + bias.to(local.scalar_type()).view(sizes);
  }
  call.return_value(wrap_result(std::move(local), result));
}

/// conv(input, weight, bias, stride, padding, dilation, groups), whose weight is [out, in, ...].
void convolution(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  const Operand weight = read(call.tensor(1));
  const auto groups = argument_named(call, "groups");
  const std::int64_t channel_dim = input.dim() - (weight.dim() - 1);
  if (!groups || call.argument(*groups).toInt() != 1 || channel_dim < 0 || channel_dim > 1) return without_rule(call);
  for (const Operand* const operand : {&input, &weight}) {
    if (operand->cut && has_empty_part(*operand->cut)) return without_rule(call);
  }
  const at::Tensor given = optional_tensor(call, 2);
  const auto bias = [&](const CutDataPtr& cut) -> at::Tensor {
    if (!given.defined()) return {};
    if (!cut) return whole_of(given);
    return fitted(read(given), cut, 1).value_or(at::Tensor());
  };
  if (given.defined() && (given.dim() != 1 || given.size(0) != weight.size(0))) return without_rule(call);
  if (weight.cut && weight.cut->dim() == 0) {
    const CutDataPtr result = moved_cut(weight.cut, channel_dim);
    return run(call, enter(whole(input), *weight.cut), weight.local, bias(weight.cut), result, {}, channel_dim);
  }
  if (same_cut(input, channel_dim, weight, 1)) {
    return run(call, input.local, weight.local, bias({}), {}, input.cut, channel_dim);
  }
  if (weight.cut && weight.cut->dim() == 1 && !input.cut) {
    const at::Tensor part = take_part_of(input.local, moved_cut(weight.cut, channel_dim));
    return run(call, part, weight.local, bias({}), {}, weight.cut, channel_dim);
  }
  if (!weight.cut && input.cut && input.cut->dim() == channel_dim) {
    const at::Tensor part = take_part_of(weight.local, moved_cut(input.cut, 1));
    return run(call, input.local, part, bias({}), {}, input.cut, channel_dim);
  }
  if (!weight.cut && input.cut && channel_dim == 1 && input.cut->dim() == 0) {
    const at::Tensor whole_bias = given.defined() ? enter(whole_of(given), *input.cut) : at::Tensor();
    return run(call, input.local, enter(weight.local, *input.cut), whole_bias, input.cut, {}, channel_dim);
  }
  without_rule(call);
}

/// Pools work on the last dimensions, each channel by itself.
template <int kNumSpatial>
void pool(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  if (input.cut->dim() >= input.dim() - kNumSpatial || has_empty_part(*input.cut)) return without_rule(call);
  run_local(call, input, input.cut);
}

}  // namespace

void add_convolution_rules(intercept::RuleTable& table) {
  table.add({"aten::conv1d", "aten::conv2d", "aten::conv3d"}, convolution);
  table.add({"aten::max_pool1d", "aten::avg_pool1d", "aten::adaptive_avg_pool1d"}, pool<1>);
  table.add({"aten::max_pool2d", "aten::avg_pool2d", "aten::adaptive_avg_pool2d"}, pool<2>);
  table.add({"aten::max_pool3d", "aten::avg_pool3d", "aten::adaptive_avg_pool3d"}, pool<3>);
}

}  // namespace tessera::tp
