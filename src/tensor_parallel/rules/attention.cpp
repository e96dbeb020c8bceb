#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;

/// Whether k or v has, on every rank, exactly the heads that the queries of that rank need.
bool serves(const Operand& query, const Operand& other, bool grouped) {
  if (!other.cut) return false;
  query.cut->require_axis_of(*other.cut);
  const Placement& of_query = query.cut->cut();
  const Placement& of_other = other.cut->cut();
  if (of_query.dim() != of_other.dim() || of_query.blocks() != of_other.blocks()) return false;
  if (query.cut->size() == other.cut->size()) return of_query.granule() == of_other.granule();
  // Each head of k and v serves several of q: as many on each rank.
  if (!grouped || other.cut->size() == 0 || query.cut->size() % other.cut->size() != 0) return false;
  return of_query.granule() == query.cut->size() / other.cut->size() * of_other.granule();
}

/// The mask that one process would draw for the dropped weights, and of it this rank's part.
at::Tensor drawn_mask(const Operand& query, const Operand& key, double dropout) {
  auto sizes = query.sizes();
  sizes.back() = key.size(key.dim() - 2);
  at::Tensor noise = at::empty(sizes, query.local.options().requires_grad(false));
  noise.bernoulli_(1 - dropout);
  return take_part_of(noise, query.cut).to(at::kBool);
}

/// The local heads of k or v, each as often as heads of q use it.
at::Tensor for_each_query_head(const Operand& other, const Operand& query) {
  const std::int64_t dim = query.dim() - 3;
  if (query.size(dim) == other.size(dim)) return other.local;
  auto sizes = other.local.sizes().vec();
  sizes.insert(sizes.begin() + dim + 1, query.size(dim) / other.size(dim));
  return other.local.unsqueeze(dim + 1).expand(sizes).flatten(dim, dim + 1);
}

/// scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa)
void attention(OperatorCall& call) {
  if (!cut_of(call.tensor(0))) return without_rule(call);
  const Operand query = read(call.tensor(0));
  const Operand key = read(call.tensor(1));
  const Operand value = read(call.tensor(2));
  const double dropout = call.argument(4).toDouble();
  const bool grouped = call.argument(7).toBool();
  const bool is_device = !query.local.device().is_cpu();
  if (query.cut->dim() >= query.dim() - 2 || key.dim() != query.dim() || !serves(query, key, grouped) ||
      !serves(query, value, grouped) || (dropout > 0 && is_device)) {
    return without_rule(call);
  }
  std::optional<at::Tensor> mask;
  if (const at::Tensor given = optional_tensor(call, 3); given.defined()) {
    mask = fitted(read(given), query.cut, query.dim() - query.cut->dim());
    if (!mask) return without_rule(call);
  }
  // For a part without heads LibTorch chooses a kernel that has no gradient of the mask. The other ranks sum theirs,
  // and would wait for this one's. See also Note [Ranks that have nothing].
  if (dropout > 0 || has_empty_part(*query.cut)) {
    const Operand cast{in_product_precision(query.local), query.cut};
    std::optional<at::Tensor> kept;
    if (dropout > 0) kept = drawn_mask(cast, key, dropout);
    std::optional<double> scale;
    if (!call.argument(6).isNone()) scale = call.argument(6).toDouble();
    const auto result = at::_scaled_dot_product_attention_math(
        cast.local, in_product_precision(for_each_query_head(key, query)),
        in_product_precision(for_each_query_head(value, query)), mask, dropout, call.argument(5).toBool(), kept, scale);
    return call.return_value(wrap(std::get<0>(result), query.cut));
  }
  call.argument(0) = c10::IValue(query.local);
  call.argument(1) = c10::IValue(key.local);
  call.argument(2) = c10::IValue(value.local);
  if (mask) call.argument(3) = c10::IValue(*mask);
  call.run();
  call.return_value(wrap(call.result(0).toTensor(), query.cut));
}

}  // namespace

void add_attention_rules(intercept::RuleTable& table) { table.add({"aten::scaled_dot_product_attention"}, attention); }

}  // namespace tessera::tp
