#include <ATen/ATen.h>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;

/// Note [Dropout of one process]
/// Every rank draws for the whole tensor, in the order in which one process would, and uses its part. So the numbers do
/// not depend on the split, and the generators of all ranks stay in step. It costs drawing for all, and memory for it.
/// A device has kernels that draw and multiply at once, in an order of their own: there the tensor is gathered.
void dropout(OperatorCall& call) {
  const at::Tensor tensor = call.tensor(0);
  const Operand input = read(tensor);
  const double probability = call.argument(1).toDouble();
  if (!call.argument(2).toBool() || probability == 0) return call.return_value(tensor);
  const bool in_place = call.name() == "aten::dropout_";
  if (probability == 1 || in_place || !input.local.device().is_cpu() || input.numel() == 0) return without_rule(call);
  // As LibTorch computes it: the noise has the strides of the input, because they decide the order of the draws.
  at::Tensor like = at::empty_strided(tensor.sizes(), tensor.strides(), input.local.options().requires_grad(false));
  at::Tensor noise = at::empty_like(like);
  noise.bernoulli_(1 - probability);
  noise.div_(1 - probability);
  call.return_value(wrap_dense(input.local * take_part_of(noise, input.cut), input.cut, tensor.strides()));
}

/// Those of whole channels, and of SELU: only that they do nothing when they should.
void other_dropout(OperatorCall& call) {
  if (!call.argument(2).toBool() || call.argument(1).toDouble() == 0) return call.return_value(call.tensor(0));
  without_rule(call);
}

}  // namespace

void add_random_rules(intercept::RuleTable& table) {
  table.add({"aten::dropout", "aten::dropout_"}, dropout);
  table.add({"aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout"}, other_dropout);
}

}  // namespace tessera::tp
