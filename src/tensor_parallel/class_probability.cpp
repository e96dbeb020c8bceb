#include "tensor_parallel/class_probability.h"

#include <tessera/intercept/custom_node.h>
#include <tessera/intercept/saved_tensors.h>

#include <ATen/ATen.h>

#include <limits>
#include <mutex>
#include <utility>

#include "tensor_parallel/collectives.h"

namespace tessera::tp {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

void reduce(const at::Tensor& values, const CutData& cut, ReduceOp op) {
  cut.axis().all_reduce(values, op, Transfer::kSum, current_site(cut));
}

/// Adds `values`, one for each place, to the class of each place, where it is this rank's.
at::Tensor with_added(const at::Tensor& scores, const HeldClasses& held, std::int64_t dim, const at::Tensor& values) {
  if (scores.size(dim) == 0) return scores;
  return scores.scatter_add(dim, held.place.unsqueeze(dim), values * held.is_held.unsqueeze(dim));
}

/// Its outputs: the logarithms of the classes' probabilities, and all probabilities. The second is the node's own: it
/// is what backward needs, and has a gradient when backward itself is differentiated.
class LogProbability : public Node {
 public:
  LogProbability(const at::Tensor& scores, CutDataPtr cut, HeldClasses held)
      : Node(edge_list{torch::autograd::impl::gradient_edge(scores)}), cut_(std::move(cut)), held_(std::move(held)) {}

  std::string name() const override { return "tessera::LogProbability"; }

  void save(const at::Tensor& probabilities) {
    probabilities_ = SavedVariable(probabilities, /*is_output=*/true);
    is_kept_elsewhere_ = intercept::SavedTensorScope::is_open();
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    const at::Tensor probabilities = probabilities_.unpack(getptr());
    const at::Tensor of_classes = gradients[0].defined() ? whole_gradient(gradients[0]) : at::Tensor();
    if (!at::GradMode::is_enabled() && !gradients[1].defined()) return {plain_gradient(probabilities, of_classes)};
    at::Tensor gradient;
    if (of_classes.defined()) {
      const at::Tensor entered = enter(of_classes.unsqueeze(cut_->dim()), *cut_);
      gradient = with_added(probabilities * entered.neg(), held_, cut_->dim(), entered);
    }
    if (gradients[1].defined()) {
      const at::Tensor mean = sum_over_ranks((probabilities * gradients[1]).sum(cut_->dim(), true), *cut_);
      const at::Tensor further = probabilities * (gradients[1] - enter(mean, *cut_));
      gradient = gradient.defined() ? gradient + further : further;
    }
    return {gradient};
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    probabilities_.reset_data();
  }

 private:
  /// Where no graph is made. In the memory of the probabilities, when nobody will need them.
  at::Tensor plain_gradient(const at::Tensor& probabilities, const at::Tensor& of_classes) {
    if (!of_classes.defined()) return {};
    const std::int64_t dim = cut_->dim();
    const at::Tensor factor = of_classes.unsqueeze(dim);
    at::Tensor gradient = probabilities.detach();
    if (is_kept_elsewhere_ || torch::autograd::get_current_graph_task_keep_graph()) {
      gradient = gradient * factor.neg();
    } else {
      gradient.mul_(factor.neg());
    }
    if (gradient.size(dim) == 0) return gradient;
    return gradient.scatter_add_(dim, held_.place.unsqueeze(dim), factor * held_.is_held.unsqueeze(dim));
  }

  CutDataPtr cut_;
  HeldClasses held_;
  SavedVariable probabilities_;
  bool is_kept_elsewhere_ = false;  // by who gives back what autograd saves, as recompute() does
  std::mutex mutex_;
};

}  // namespace

at::Tensor greatest(const at::Tensor& local, const CutData& cut) {
  const at::NoGradGuard no_grad;
  auto sizes = local.sizes().vec();
  sizes[static_cast<std::size_t>(cut.dim())] = 1;
  at::Tensor most = cut.local_size() > 0 ? local.detach().amax(cut.dim(), true).contiguous()
                                         : at::full(sizes, -std::numeric_limits<double>::infinity(),
                                                    local.options().requires_grad(false));
  reduce(most, cut, ReduceOp::kMax);
  // A row without a finite value: one process subtracts it too, and gets no number.
  return most;
}

HeldClasses held_classes(const at::Tensor& classes, const CutData& cut) {
  const Range held = cut.cut().in_block(cut.size(), cut.axis().size(), cut.axis().rank());
  const at::Tensor place = classes - held.start;
  const at::Tensor is_held = (place >= 0).logical_and_(place < held.size);
  return {place.masked_fill(is_held.logical_not(), 0), is_held};
}

at::Tensor log_probability(const at::Tensor& local, const CutDataPtr& cut, const at::Tensor& classes) {
  const std::int64_t dim = cut->dim();
  const HeldClasses held = held_classes(classes, *cut);
  at::Tensor result;
  at::Tensor probabilities;
  {
    const at::NoGradGuard no_grad;
    probabilities = local.detach() - greatest(local, *cut);
    const at::Tensor picked = probabilities.size(dim) == 0
                                  ? at::zeros(classes.sizes(), probabilities.options())
                                  : probabilities.gather(dim, held.place.unsqueeze(dim)).squeeze(dim) * held.is_held;
    probabilities.exp_();
    const at::Tensor sums = at::stack({probabilities.sum(dim), picked});
    reduce(sums, *cut, ReduceOp::kSum);
    probabilities.div_(sums[0].unsqueeze(dim));
    result = sums[1] - sums[0].log();
  }
  if (!at::GradMode::is_enabled() || !local.requires_grad()) return result;
  const auto node = c10::make_intrusive<LogProbability>(local, cut, held);
  torch::autograd::create_gradient_edge(result, node);
  torch::autograd::create_gradient_edge(probabilities, node);
  node->save(probabilities);
  return result;
}

}  // namespace tessera::tp
