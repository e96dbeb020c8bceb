#include <tessera/core/error.h>
#include <tessera/core/log.h>
#include <tessera/intercept/read_only.h>

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/operands.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::OperatorCall;

CutDataPtr first_cut(OperatorCall& call) {
  CutDataPtr first;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    CutDataPtr cut = cut_of(tensor);
    require_one_axis(first, cut);
    if (!first) first = std::move(cut);
    return {};
  });
  return first;
}

}  // namespace

void gather_and_run(OperatorCall& call) {
  const CutDataPtr first = first_cut(call);
  const Site* const site = current_site(*first);
  if (first->axis().is_strict()) {
    throw ConfigError(call.name() + " has no rule for tensors that are cut as " + first->cut().text() + " (of " +
                      *first->parameter() +
                      "), and strict(true) allows no gather: change the plan, or allow it with strict(false)");
  }
  first->axis().log_gathered(site);

  struct Written {
    at::Tensor tensor;  // that is cut
    at::Tensor whole;   // that the operator writes to
    CutDataPtr cut;
  };
  std::vector<Written> written;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    CutDataPtr cut = cut_of(tensor);
    if (!cut) return {};
    if (!call.writes(index)) return whole_of(tensor);
    for (const Written& other : written) {
      if (other.tensor.is_same(tensor)) return other.whole;
    }
    // A new tensor, since what is gathered on one rank is the tensor itself.
    at::Tensor copy = gather_whole(intercept::inner_for_write(tensor), cut).clone();
    written.push_back({tensor, std::move(copy), std::move(cut)});
    return written.back().whole;
  });
  const bool is_view = call.returns_view() && written.empty();
  call.run();
  for (const Written& item : written) {
    if (item.whole.sizes() != read(item.tensor).sizes()) {
      throw ConfigError(call.name() + " changes the shape of a tensor that is cut (of " + *item.cut->parameter() +
                        "): give it a new tensor instead");
    }
    at::Tensor inner = intercept::inner_for_write(item.tensor);
    inner.copy_(take_part_of(item.whole, item.cut));
    if (intercept::is_wrapper(item.tensor)) {
      intercept::set_inner(item.tensor, inner, item.tensor.sizes(), item.tensor.strides());
    }
  }
  call.for_each_result([&](std::size_t, const at::Tensor& result) -> at::Tensor {
    for (const Written& item : written) {
      if (item.whole.is_same(result)) return item.tensor;
    }
    if (!is_view || result.is_same(at::Tensor())) return {};
    return intercept::make_read_only(
        result, "it is a view of a tensor that was gathered from all ranks (of " + *first->parameter() + ")");
  });
}

intercept::RuleTable::Rule find_rule(const c10::OperatorHandle& op) {
  static const intercept::RuleTable* const rules = [] {
    auto* const table = new intercept::RuleTable;  // lives as long as the process
    add_pointwise_rules(*table);
    add_view_rules(*table);
    add_product_rules(*table);
    add_attention_rules(*table);
    add_normalisation_rules(*table);
    add_reduction_rules(*table);
    add_embedding_rules(*table);
    add_convolution_rules(*table);
    add_copy_rules(*table);
    add_random_rules(*table);
    return table;
  }();
  return rules->find(op);
}

}  // namespace tessera::tp
