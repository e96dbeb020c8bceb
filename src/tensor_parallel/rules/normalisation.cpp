#include <ATen/ATen.h>

#include <vector>

#include "tensor_parallel/class_probability.h"
#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;

/// Along the dimension that is cut.
at::Tensor log_softmax_over_ranks(const at::Tensor& local, const CutData& cut) {
  const at::Tensor shifted = local - greatest(local, cut);
  const at::Tensor sum = sum_over_ranks(shifted.exp().sum(cut.dim(), true), cut);
  return shifted - enter(sum.log(), cut);
}

at::Tensor softmax_over_ranks(const at::Tensor& local, const CutData& cut) {
  const at::Tensor powers = (local - greatest(local, cut)).exp();
  return powers / enter(sum_over_ranks(powers.sum(cut.dim(), true), cut), cut);
}

/// softmax(self, dim, dtype)
void softmax(OperatorCall& call) {
  const Operand input = read(call.tensor(0));
  if (!call.argument(1).isInt() || input.dim() == 0) return without_rule(call);
  if (from_front(call.argument(1).toInt(), input.dim()) != input.cut->dim()) return run_local(call, input, input.cut);
  const bool has_dtype = call.num_arguments() > 2 && call.argument(2).isInt();
  if (input.numel() == 0 || (call.num_arguments() > 2 && call.argument(2).isBool())) return without_rule(call);
  const at::Tensor local = has_dtype ? input.local.to(call.argument(2).toScalarType()) : in_full_precision(input.local);
  const bool is_log = call.name().find("log_softmax") != std::string::npos;
  call.return_value(
      wrap(is_log ? log_softmax_over_ranks(local, *input.cut) : softmax_over_ranks(local, *input.cut), input.cut));
}

/// For each place the value of its class, out of a dimension of classes that is cut in one block.
at::Tensor picked(const at::Tensor& local, const CutDataPtr& cut, const at::Tensor& classes) {
  const HeldClasses held = held_classes(classes, *cut);
  const at::Tensor values =
      with_one_index(local, cut->dim()).gather(cut->dim(), held.place.unsqueeze(cut->dim())).squeeze(cut->dim());
  return sum_over_ranks(values.masked_fill(held.is_held.logical_not(), 0), *cut);
}

/// The loss of classes by their logarithmic probabilities.
at::Tensor reduced_loss(const at::Tensor& logarithms, const at::Tensor& is_valid, std::int64_t reduction) {
  const at::Tensor losses = logarithms.neg().masked_fill(is_valid.logical_not(), 0);
  if (reduction == at::Reduction::None) return losses;
  if (reduction == at::Reduction::Sum) return losses.sum();
  return losses.sum() / is_valid.sum().to(losses.scalar_type());
}

/// (self, target, weight, reduction, ignore_index, ...) with classes along a dimension of `self` that is cut.
void class_loss(OperatorCall& call) {
  const at::Tensor scores = call.tensor(0);
  const at::Tensor target = call.tensor(1);
  if (!cut_of(scores) || cut_of(target) || target.is_floating_point() || optional_tensor(call, 2).defined()) {
    return without_rule(call);
  }
  const bool has_logits = call.name() == "aten::cross_entropy_loss";
  if (has_logits && call.argument(5).toDouble() != 0) return without_rule(call);
  const Operand input = read(scores);
  const std::int64_t class_dim = input.dim() >= 2 ? 1 : 0;
  auto expected = input.sizes();
  expected.erase(expected.begin() + class_dim);
  if (input.cut->dim() != class_dim || input.cut->cut().blocks() != 1 || target.sizes() != expected) {
    return without_rule(call);
  }
  const at::Tensor is_valid = target != call.argument(4).toInt();
  const at::Tensor is_class = (target >= 0).logical_and(target < input.cut->size());
  TORCH_CHECK_INDEX(!target.device().is_cpu() || is_class.logical_or(is_valid.logical_not()).all().item<bool>(),
                    "a target is out of bounds: there are ", input.cut->size(), " classes");
  const at::Tensor local = in_full_precision(input.local);
  const at::Tensor classes = target.masked_fill(is_valid.logical_not(), 0).to(at::kLong);
  const at::Tensor logarithms =
      has_logits ? log_probability(local, input.cut, classes) : picked(local, input.cut, classes);
  call.return_value(reduced_loss(logarithms, is_valid, call.argument(3).toInt()));
}

/// Runs with a whole weight and bias, each of which may be missing.
void enter_weights(OperatorCall& call, const CutData& cut, std::size_t weight, std::size_t bias) {
  for (const std::size_t index : {weight, bias}) {
    if (const at::Tensor tensor = optional_tensor(call, index); tensor.defined()) {
      call.argument(index) = c10::IValue(enter(whole_of(tensor), cut));
    }
  }
}

/// layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable)
void layer_norm(OperatorCall& call) {
  if (!cut_of(call.tensor(0))) return without_rule(call);
  const Operand input = read(call.tensor(0));
  const auto num_normalised = static_cast<std::int64_t>(call.argument(1).toIntVector().size());
  if (input.cut->dim() >= input.dim() - num_normalised) return without_rule(call);
  enter_weights(call, *input.cut, 2, 3);
  run_local(call, input, input.cut);
}

/// group_norm(input, num_groups, weight, bias, eps, cudnn_enabled)
void group_norm(OperatorCall& call) {
  if (!cut_of(call.tensor(0)) || cut_of(call.tensor(0))->dim() != 0) return without_rule(call);
  const Operand input = read(call.tensor(0));
  if (has_empty_part(*input.cut)) return without_rule(call);
  enter_weights(call, *input.cut, 2, 3);
  run_local(call, input, input.cut);
}

/// Whether a vector is cut as the channels of a tensor are.
bool is_cut_so(const at::Tensor& vector, const CutData& channels) {
  const CutDataPtr cut = cut_of(vector);
  return cut && cut->has_indices_of(channels);
}

/// batch_norm(input, weight, bias, running_mean, running_var, training, ...) writes to the running statistics, though
/// its schema does not say so.
void batch_norm(OperatorCall& call) {
  const CutDataPtr cut = cut_of(call.tensor(0));
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // statistics that are cut, and whole copies of them
  bool all_cut = true;
  for (const std::size_t index : {std::size_t{3}, std::size_t{4}}) {
    const at::Tensor statistics = optional_tensor(call, index);
    all_cut = all_cut && (!statistics.defined() || (cut && is_cut_so(statistics, *cut)));
  }
  const bool updates = call.argument(5).toBool();
  if (cut && cut->dim() == 1 && (all_cut || !updates) && !has_empty_part(*cut)) {
    const Operand input = read(call.tensor(0));
    std::vector<std::pair<std::size_t, at::Tensor>> locals;
    bool fits = true;
    for (std::size_t index = 1; index < 5; ++index) {
      const at::Tensor tensor = optional_tensor(call, index);
      if (!tensor.defined()) continue;
      auto local = fitted(read(tensor), cut, 1);
      fits = fits && local;
      if (local) locals.emplace_back(index, std::move(*local));
    }
    if (fits) {
      call.argument(0) = c10::IValue(input.local);
      for (const auto& [index, local] : locals) call.argument(index) = c10::IValue(local);
      call.run();
      return call.return_value(wrap(call.result(0).toTensor(), cut));
    }
  }
  for (const std::size_t index : {std::size_t{3}, std::size_t{4}}) {
    const at::Tensor statistics = optional_tensor(call, index);
    if (!statistics.defined() || !cut_of(statistics)) continue;
    written.emplace_back(statistics, whole_of(statistics).clone());
    call.argument(index) = c10::IValue(written.back().second);
  }
  if (cut || cut_of(optional_tensor(call, 1)) || cut_of(optional_tensor(call, 2))) {
    gather_and_run(call);
  } else {
    call.run();
  }
  // As LibTorch's kernel writes: not counted as a change. Another call may have saved them for its gradients.
  for (const auto& [statistics, all] : written) {
    if (updates) intercept::held_part(statistics).copy_(take_part_of(all, cut_of(statistics)));
  }
}

}  // namespace

void add_normalisation_rules(intercept::RuleTable& table) {
  table.add({"aten::softmax", "aten::log_softmax", "aten::_softmax", "aten::_log_softmax"}, softmax);
  table.add({"aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss_nd", "aten::nll_loss2d"}, class_loss);
  table.add({"aten::layer_norm"}, layer_norm);
  table.add({"aten::group_norm"}, group_norm);
  table.add({"aten::batch_norm"}, batch_norm);
}

}  // namespace tessera::tp
