#include <ATen/ATen.h>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;

/// Each rank looks up the indices whose rows it has; the sum has all of them.
at::Tensor looked_up(const Operand& weight, const at::Tensor& indices, std::int64_t padding) {
  const CutData& cut = *weight.cut;
  check_same(indices, cut);
  const Range held = cut.cut().in_block(cut.size(), cut.axis().size(), cut.axis().rank());
  const at::Tensor place = indices - held.start;
  const at::Tensor is_held = (place >= 0).logical_and(place < held.size);
  // An index that no rank has stays what it is: the operator says what is wrong with it.
  const at::Tensor is_other = is_held.logical_not().logical_and((indices >= 0).logical_and(indices < cut.size()));
  // A rank without rows: Note [Ranks that have nothing]. An index behind the last row would find the one of zeros.
  TORCH_CHECK_INDEX(held.size > 0 || !indices.device().is_cpu() || is_other.all().item<bool>(),
                    "index out of range in self");
  const bool has_padding = padding >= held.start && padding < held.end();
  const at::Tensor rows = at::embedding(with_one_index(weight.local, 0), place.masked_fill(is_other, 0),
                                        has_padding ? padding - held.start : -1);
  return sum_over_ranks(rows.masked_fill(is_other.unsqueeze(-1), 0), cut);
}

/// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
void embedding(OperatorCall& call) {
  const Operand weight = read(call.tensor(0));
  const at::Tensor indices = call.tensor(1);
  const bool is_special = call.argument(3).toBool() || call.argument(4).toBool();
  if (!weight.cut || cut_of(indices) || weight.dim() != 2 || is_special) return without_rule(call);
  if (weight.cut->dim() == 1) return run_local(call, weight, moved_cut(weight.cut, indices.dim()));
  if (weight.cut->cut().blocks() != 1) return without_rule(call);
  call.return_value(looked_up(weight, indices, call.argument(2).toInt()));
}

}  // namespace

void add_embedding_rules(intercept::RuleTable& table) { table.add({"aten::embedding"}, embedding); }

}  // namespace tessera::tp
