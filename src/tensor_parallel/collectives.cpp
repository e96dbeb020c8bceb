#include "tensor_parallel/collectives.h"

#include <tessera/intercept/custom_node.h>
#include <tessera/intercept/sole_owner.h>
#include <tessera/shard/placement_ops.h>

#include <ATen/ATen.h>

#include <utility>

namespace tessera::tp {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;

bool needs_node(const at::Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

/// Where a collective in backward is logged.
struct Where {
  CutDataPtr cut;
  const Site* site;
};

/// May write to a tensor of which the caller gives the only reference.
at::Tensor summed(at::Tensor local, const Where& where, Transfer transfer) {
  if (where.cut->axis().size() == 1) return local;
  const bool is_given = local.is_contiguous() && intercept::is_sole_owner(local);
  at::Tensor sum = is_given ? local.tensor_data() : local.detach().clone(at::MemoryFormat::Contiguous);
  where.cut->axis().comm().all_reduce(sum);
  where.cut->axis().log(transfer, where.site, static_cast<std::int64_t>(sum.nbytes()));
  return sum;
}

at::Tensor gathered(const at::Tensor& local, const Where& where, Transfer transfer) {
  const CutData& cut = *where.cut;
  if (cut.axis().size() == 1) return local;
  at::Tensor whole = gather_parts(local.detach(), cut.cut(), cut.size(), cut.axis().comm());
  cut.axis().log(transfer, where.site, static_cast<std::int64_t>(whole.nbytes()));
  return whole;
}

// Each function below is the backward of another, so that gradients have gradients. tensor_data() is detach() without
// the way through the dispatcher: it shares the count of writes too.

at::Tensor enter_at(const at::Tensor& whole, const Where& where);
at::Tensor sum_at(at::Tensor local, const Where& where, Transfer transfer);
at::Tensor gather_at(const at::Tensor& local, const Where& where, Transfer transfer);
at::Tensor take_at(const at::Tensor& whole, const Where& where);

/// A node of one input and one output.
class AxisNode : public Node {
 public:
  AxisNode(const at::Tensor& input, Where where) : Node(edge_list{gradient_edge(input)}), where_(std::move(where)) {}

 protected:
  /// Some kernels give no gradient for a part without elements. The other ranks have one, and wait for this one.
  at::Tensor defined(at::Tensor gradient) const {
    return gradient.defined() ? std::move(gradient) : input_metadata(0).zeros_like();
  }

  Where where_;
};

class Enter : public AxisNode {
 public:
  using AxisNode::AxisNode;
  std::string name() const override { return "tessera::Enter"; }
  variable_list apply(variable_list&& gradients) override {
    return {sum_at(defined(std::move(gradients[0])), where_, Transfer::kGradientSum)};
  }
};

class SumOverRanks : public AxisNode {
 public:
  using AxisNode::AxisNode;
  std::string name() const override { return "tessera::SumOverRanks"; }
  variable_list apply(variable_list&& gradients) override {
    return {enter_at(whole_gradient(defined(gradients[0])), where_)};
  }
};

class GatherWhole : public AxisNode {
 public:
  using AxisNode::AxisNode;
  std::string name() const override { return "tessera::GatherWhole"; }
  variable_list apply(variable_list&& gradients) override {
    return {take_at(whole_gradient(defined(gradients[0])), where_)};
  }
};

class TakePart : public AxisNode {
 public:
  using AxisNode::AxisNode;
  std::string name() const override { return "tessera::TakePart"; }
  variable_list apply(variable_list&& gradients) override {
    return {gather_at(defined(gradients[0]), where_, Transfer::kGradientGather)};
  }
};

template <class NodeType>
at::Tensor with_node(at::Tensor result, const at::Tensor& input, const Where& where) {
  torch::autograd::create_gradient_edge(result, c10::make_intrusive<NodeType>(input, where));
  return result;
}

at::Tensor enter_at(const at::Tensor& whole, const Where& where) {
  if (!needs_node(whole)) return whole;
  return with_node<Enter>(whole.tensor_data(), whole, where);
}

at::Tensor sum_at(at::Tensor local, const Where& where, Transfer transfer) {
  if (!needs_node(local)) return summed(std::move(local), where, transfer);
  auto node = c10::make_intrusive<SumOverRanks>(local, where);
  at::Tensor sum = summed(std::move(local), where, transfer);
  if (sum.requires_grad()) sum = sum.tensor_data();
  torch::autograd::create_gradient_edge(sum, std::move(node));
  return sum;
}

at::Tensor gather_at(const at::Tensor& local, const Where& where, Transfer transfer) {
  at::Tensor whole = gathered(local, where, transfer);
  if (!needs_node(local)) return whole;
  return with_node<GatherWhole>(whole.is_same(local) ? local.detach() : whole, local, where);
}

at::Tensor take_at(const at::Tensor& whole, const Where& where) {
  const CutData& cut = *where.cut;
  at::Tensor part = take_part(whole.detach(), cut.cut(), cut.axis().size(), cut.axis().rank()).contiguous();
  return needs_node(whole) ? with_node<TakePart>(std::move(part), whole, where) : part;
}

Where here(const CutDataPtr& cut) { return {cut, current_site(*cut)}; }

CutDataPtr shared(const CutData& cut) { return CutDataPtr::unsafe_reclaim_from_nonowning(const_cast<CutData*>(&cut)); }

}  // namespace

void check_same(const at::Tensor& whole, const CutData& cut) {
  if (cut.axis().checks_inputs()) cut.axis().check_same(whole, current_site(cut));
}

at::Tensor enter(const at::Tensor& whole, const CutData& cut) {
  check_same(whole, cut);
  if (!needs_node(whole) || cut.axis().size() == 1) return whole;
  const torch::autograd::Edge edge = gradient_edge(whole);
  auto node = cut.axis().find_entry(edge.function.get(), edge.input_nr);
  if (!node) {
    at::Tensor entered = enter_at(whole, here(shared(cut)));
    cut.axis().remember_entry(edge.function.get(), edge.input_nr, entered.grad_fn());
    return entered;
  }
  at::Tensor entered = whole.tensor_data();
  torch::autograd::impl::set_gradient_edge(entered, {std::move(node), 0});
  return entered;
}

at::Tensor sum_over_ranks(at::Tensor local, const CutData& cut) {
  return sum_at(std::move(local), here(shared(cut)), Transfer::kSum);
}

at::Tensor gather_whole(const at::Tensor& local, const CutDataPtr& cut) {
  return gather_at(local, here(cut), Transfer::kGather);
}

at::Tensor take_part_of(const at::Tensor& whole, const CutDataPtr& cut) {
  if (cut->axis().size() == 1) return whole;
  check_same(whole, *cut);
  return take_at(whole, here(cut));
}

at::Tensor whole_gradient(const at::Tensor& gradient) {
  const at::Tensor whole = whole_of(gradient);
  return intercept::is_wrapper(whole) ? intercept::inner_of(whole).clone() : whole;
}

at::Tensor whole_of(const at::Tensor& tensor) {
  const Operand operand = read(tensor);
  return operand.cut ? gather_whole(operand.local, operand.cut) : tensor;
}

}  // namespace tessera::tp
