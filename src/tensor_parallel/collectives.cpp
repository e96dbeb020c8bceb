#include "tensor_parallel/collectives.h"

#include <tessera/intercept/custom_node.h>
#include <tessera/intercept/kept_error.h>
#include <tessera/intercept/sole_owner.h>
#include <tessera/shard/placement_ops.h>

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>

#include <limits>
#include <memory>
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

/// To sum in: the tensor itself where the caller gives the only reference.
at::Tensor writable(at::Tensor local) {
  const bool is_given = local.is_contiguous() && intercept::is_sole_owner(local);
  return is_given ? local.tensor_data() : local.detach().clone(at::MemoryFormat::Contiguous);
}

/// A tensor as the only user of its bytes. A collective that was under way may keep its tensors a moment longer on one
/// rank than on another. But whether autograd's engine adds to a gradient in place follows from the number of users,
/// and the ranks must do the same.
at::Tensor as_only_user(at::Tensor tensor) {
  void* const bytes = tensor.mutable_data_ptr();
  auto kept = std::make_unique<at::Tensor>(tensor);
  const auto release = [](void* context) { delete static_cast<at::Tensor*>(context); };
  c10::Storage storage(c10::Storage::use_byte_size_t{}, tensor.nbytes(),
                       c10::DataPtr(bytes, kept.release(), release, tensor.device()), nullptr, /*resizable=*/false);
  return at::empty({0}, tensor.options()).set_(std::move(storage), 0, tensor.sizes(), tensor.strides());
}

at::Tensor summed(at::Tensor local, const Where& where, Transfer transfer) {
  if (where.cut->axis().size() == 1) return local;
  at::Tensor sum = writable(std::move(local));
  where.cut->axis().all_reduce(sum, ReduceOp::kSum, transfer, where.site);
  return sum;
}

at::Tensor gathered(const at::Tensor& local, const Where& where, Transfer transfer) {
  const CutData& cut = *where.cut;
  if (cut.axis().size() == 1) return local;
  intercept::raise_kept_errors();
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

  /// Some kernels give no gradient for a part without elements. The other ranks have one, and wait for this one.
  at::Tensor defined(at::Tensor gradient) const {
    return gradient.defined() ? std::move(gradient) : input_metadata(0).zeros_like();
  }

 protected:
  Where where_;
};

/// Waits for the sum that StartSum has begun; see Note [A sum under way].
class WaitForSum : public AxisNode {
 public:
  using AxisNode::AxisNode;
  std::string name() const override { return "tessera::WaitForSum"; }

  void start(at::Tensor gradient) {
    sum_ = writable(std::move(gradient));
    work_ = where_.cut->axis().all_reduce_async(sum_, Transfer::kGradientSum, where_.site);
  }

  /// What is summed does not come through the engine, which might look at it.
  variable_list apply(variable_list&& gradients) override {
    if (gradients[0].defined()) return {sum_at(std::move(gradients[0]), where_, Transfer::kGradientSum)};
    Work work = std::exchange(work_, {});
    work.wait();
    return {as_only_user(std::exchange(sum_, {}))};
  }

 private:
  at::Tensor sum_;
  Work work_;
};

class StartSum : public Node {
 public:
  explicit StartSum(c10::intrusive_ptr<WaitForSum> wait)
      : Node(kFirst, edge_list{{wait, 0}}),
        wait_(std::move(wait)),
        number_between_(at::sequence_number::get_and_increment()) {}
  std::string name() const override { return "tessera::StartSum"; }

  variable_list apply(variable_list&& gradients) override {
    at::Tensor gradient = wait_->defined(std::move(gradients[0]));
    if (needs_node(gradient)) return {std::move(gradient)};
    wait_->start(std::move(gradient));
    return {at::Tensor()};
  }

  /// Above that of the wait, below those of all that is computed with what entered.
  std::uint64_t number_between() const { return number_between_; }

 private:
  static constexpr std::uint64_t kFirst = std::numeric_limits<std::uint64_t>::max();  // as soon as it can run
  c10::intrusive_ptr<WaitForSum> wait_;
  std::uint64_t number_between_;
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
  auto wait = c10::make_intrusive<WaitForSum>(whole, where);
  wait->add_input_metadata(whole);
  at::Tensor entered = whole.tensor_data();
  torch::autograd::create_gradient_edge(entered, c10::make_intrusive<StartSum>(std::move(wait)));
  return entered;
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

std::optional<std::uint64_t> number_during_sum(const at::Tensor& entered) {
  const auto* const start = dynamic_cast<const StartSum*>(entered.grad_fn().get());
  return start ? std::optional<std::uint64_t>(start->number_between()) : std::nullopt;
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
  return operand.cut ? in_order_of(tensor.strides(), gather_whole(operand.local, operand.cut)) : tensor;
}

}  // namespace tessera::tp
