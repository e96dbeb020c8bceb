#include <tessera/core/error.h>
#include <tessera/core/log.h>
#include <tessera/intercept/read_only.h>

#include <ATen/ATen.h>

#include <map>
#include <string>
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
    if (first && cut) first->require_axis_of(*cut);
    if (!first) first = std::move(cut);
    return {};
  });
  return first;
}

/// What the first cut argument holds: its version tells of writes.
at::Tensor first_inner(OperatorCall& call) {
  at::Tensor inner;
  call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
    if (inner.defined() || !cut_of(tensor)) return {};
    inner = intercept::holds_part(tensor) ? intercept::held_part(tensor) : intercept::inner_of(tensor);
    return {};
  });
  return inner;
}

/// Whether a norm has running statistics that are cut. Its schema does not say that it writes them.
bool writes_held_statistics(OperatorCall& call) {
  for (const char* const name : {"running_mean", "running_var"}) {
    const auto place = argument_named(call, name);
    if (place && call.argument(*place).isTensor() && cut_of(call.tensor(*place))) return true;
  }
  return false;
}

/// Operators that cannot be had by gathering, and why.
void refuse_what_cannot_be(OperatorCall& call, const CutData& cut) {
  static const char* const kAddresses = "memory is addressed in a tensor of which each rank has a part";
  static const char* const kChangesShape = "the shape of a tensor is changed in place";
  static const char* const kHidesWrites = "running statistics would be written to a copy";
  static const std::map<std::string, const char*, std::less<>> refused{{"aten::as_strided", kAddresses},
                                                                       {"aten::as_strided_", kAddresses},
                                                                       {"aten::t_", kChangesShape},
                                                                       {"aten::transpose_", kChangesShape},
                                                                       {"aten::swapdims_", kChangesShape},
                                                                       {"aten::swapaxes_", kChangesShape},
                                                                       {"aten::squeeze_", kChangesShape},
                                                                       {"aten::unsqueeze_", kChangesShape},
                                                                       {"aten::resize_", kChangesShape},
                                                                       {"aten::instance_norm", kHidesWrites},
                                                                       {"aten::native_batch_norm", kHidesWrites}};
  const auto found = refused.find(call.name());
  if (found == refused.end()) return;
  const bool is_norm = call.name().find("norm") != std::string::npos;
  if (is_norm && !writes_held_statistics(call)) return;
  throw ConfigError(call.name() + " of a tensor that is cut (of " + *cut.parameter() + ") is refused: " +
                    found->second + ". Use an operator that returns a new tensor, or leave the layer out of the plan");
}

}  // namespace

void gather_and_run(OperatorCall& call) {
  const CutDataPtr first = first_cut(call);
  const Site* const site = current_site(*first);
  refuse_what_cannot_be(call, *first);
  if (first->axis().is_strict()) {
    throw ConfigError(call.name() + " has no rule for tensors that are cut as " + first->cut().text() + " (of " +
                      *first->parameter() +
                      "), and strict(true) allows no gather: change the plan, or allow it with strict(false)");
  }
  first->axis().log_gathered(site);

  const at::Tensor original = call.returns_view() && !call.writes_any() ? first_inner(call) : at::Tensor();

  struct Written {
    at::Tensor tensor;  // that is cut
    at::Tensor whole;   // that the operator writes to
    CutDataPtr cut;
  };
  std::vector<Written> written;
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    CutDataPtr cut = cut_of(tensor);
    if (!cut || !call.writes(index)) return {};
    for (const Written& other : written) {
      if (other.tensor.is_same(tensor)) return other.whole;
    }
    // A new tensor, since what is gathered on one rank is the tensor itself; laid out as the whole would be, because
    // random numbers are written in the order of memory.
    const at::Tensor gathered = gather_whole(intercept::inner_for_write(tensor), cut);
    written.push_back({tensor, in_order_of(tensor.strides(), gathered.clone()), std::move(cut)});
    return written.back().whole;
  });
  call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
    if (!cut_of(tensor) || call.writes(index)) return {};
    for (const Written& other : written) {
      if (other.tensor.is_same(tensor)) return other.whole;  // reads what it has written so far
    }
    return whole_of(tensor);
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
    after_write(item.tensor, inner);
  }
  call.for_each_result([&](std::size_t, const at::Tensor& result) -> at::Tensor {
    for (const Written& item : written) {
      if (item.whole.is_same(result)) return item.tensor;
    }
    if (!is_view || result.is_same(at::Tensor())) return {};
    return intercept::make_read_only(
        result, "it is a view of a tensor that was gathered from all ranks (of " + *first->parameter() + ")", original);
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
