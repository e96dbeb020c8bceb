#include <tessera/intercept/custom_node.h>
#include <tessera/intercept/gradient_node.h>
#include <tessera/intercept/split_product.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tessera::intercept {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;

/// A matrix whose columns lie one after the other, as t() of a weight.
bool is_turned(at::IntArrayRef sizes, at::IntArrayRef strides) {
  return strides[0] == 1 && strides[1] == sizes[0] && sizes[1] != 1;
}

at::Tensor as_matrix(const at::Tensor& tensor) { return tensor.dim() == 2 ? tensor : tensor.flatten(0, -2); }

/// The gradients of the weight and of the bias.
class WeightGradient : public Node {
 public:
  WeightGradient(std::uint64_t number, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias)
      : Node(number, edges(weight, bias)),
        input_(input, /*is_output=*/false),
        weight_is_turned_(is_turned(weight.sizes(), weight.strides())),
        bias_sizes_(bias.defined() ? bias.sizes().vec() : std::vector<std::int64_t>()) {}

  std::string name() const override { return "tessera::WeightGradient"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    variable_list results(num_outputs());
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return results;
    if (task_should_compute_output(0)) {
      const at::Tensor input = as_matrix(held_input_.defined() ? held_input_ : input_.unpack(getptr()));
      const at::Tensor of_result = as_matrix(gradient);
      // In the order of the weight's memory, as LibTorch's node does it.
      results[0] = weight_is_turned_ ? of_result.t().mm(input).t() : input.t().mm(of_result);
    }
    if (num_outputs() > 1 && task_should_compute_output(1)) results[1] = gradient.sum_to_size(bias_sizes_);
    return results;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input_.reset_data();
  }

  /// What it has saved stays, whatever becomes of the graph.
  void hold_input() {
    const std::lock_guard lock(mutex_);
    held_input_ = input_.unpack(getptr());
    input_.reset_data();
  }

 private:
  static edge_list edges(const at::Tensor& weight, const at::Tensor& bias) {
    edge_list list{gradient_edge(weight)};
    if (bias.defined() && bias.requires_grad()) list.push_back(gradient_edge(bias));
    return list;
  }

  SavedVariable input_;
  at::Tensor held_input_;
  bool weight_is_turned_;
  std::vector<std::int64_t> bias_sizes_;
  std::mutex mutex_;
};

/// The gradient of the input.
class SplitProduct : public Node {
 public:
  SplitProduct(const at::Tensor& input, const at::Tensor& weight, edge_list edges)
      : Node(std::move(edges)),
        weight_(weight, /*is_output=*/false),
        input_sizes_(input.sizes().vec()),
        input_is_turned_(input.dim() == 2 && is_turned(input.sizes(), input.strides())) {}

  std::string name() const override { return "tessera::SplitProduct"; }

  /// That of the result goes on to the node of the weight.
  variable_list apply(variable_list&& gradients) override {
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return {{}, {}};
    return {input_gradient(gradient), gradient};
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    weight_.reset_data();
  }

 protected:
  at::Tensor input_gradient(const at::Tensor& gradient) {
    const std::lock_guard lock(mutex_);
    if (!task_should_compute_output(0)) return {};
    const at::Tensor weight = weight_.unpack(getptr());
    const at::Tensor of_result = as_matrix(gradient);
    const at::Tensor of_input = input_is_turned_ ? weight.mm(of_result.t()).t() : of_result.mm(weight.t());
    return of_input.sizes() == input_sizes_ ? of_input : of_input.view(input_sizes_);
  }

 private:
  SavedVariable weight_;
  std::vector<std::int64_t> input_sizes_;
  bool input_is_turned_;
  std::mutex mutex_;
};

}  // namespace

struct DeferredGradients::Waiting {
  struct Gradient {
    c10::intrusive_ptr<WeightGradient> node;
    at::Tensor of_result;
  };
  std::mutex mutex;
  std::vector<Gradient> gradients;
};

DeferredGradients::DeferredGradients() : waiting_(std::make_unique<Waiting>()) {}
DeferredGradients::~DeferredGradients() = default;

bool DeferredGradients::empty() const {
  const std::lock_guard lock(waiting_->mutex);
  return waiting_->gradients.empty();
}

void DeferredGradients::run() {
  std::vector<Waiting::Gradient> gradients;
  {
    const std::lock_guard lock(waiting_->mutex);
    gradients = std::move(waiting_->gradients);
  }
  for (Waiting::Gradient& one : gradients) {
    variable_list results;
    {
      const at::NoGradGuard no_grad;
      results = one.node->apply({std::move(one.of_result)});
    }
    const edge_list edges = one.node->next_edges();
    one.node.reset();
    torch::autograd::Engine::get_default_engine().execute(edges, results, /*keep_graph=*/false, /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }
}

/// That of the result waits with the node of the weight.
class DeferringProduct : public SplitProduct {
 public:
  DeferringProduct(const at::Tensor& input, const at::Tensor& weight,
                   c10::intrusive_ptr<WeightGradient> weight_gradient, std::shared_ptr<DeferredGradients> deferred)
      : SplitProduct(input, weight, {gradient_edge(input)}),
        weight_gradient_(std::move(weight_gradient)),
        deferred_(std::move(deferred)) {}

  std::string name() const override { return "tessera::DeferringProduct"; }

  variable_list apply(variable_list&& gradients) override {
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return {{}};
    weight_gradient_->hold_input();
    {
      const std::lock_guard lock(deferred_->waiting_->mutex);
      deferred_->waiting_->gradients.push_back({weight_gradient_, gradient});
    }
    return {input_gradient(gradient)};
  }

  void release_variables() override {
    SplitProduct::release_variables();
    weight_gradient_->release_variables();
  }

 private:
  c10::intrusive_ptr<WeightGradient> weight_gradient_;
  std::shared_ptr<DeferredGradients> deferred_;
};

void connect_split_product(at::Tensor& result, const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, std::uint64_t weight_number) {
  auto weight_gradient = c10::make_intrusive<WeightGradient>(weight_number, input, weight, bias);
  weight_gradient->add_input_metadata(result);
  edge_list edges{gradient_edge(input), Edge(std::move(weight_gradient), 0)};
  torch::autograd::create_gradient_edge(result, c10::make_intrusive<SplitProduct>(input, weight, std::move(edges)));
}

void connect_deferred_product(at::Tensor& result, const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& bias, std::shared_ptr<DeferredGradients> deferred) {
  auto weight_gradient = c10::make_intrusive<WeightGradient>(0, input, weight, bias);
  torch::autograd::create_gradient_edge(
      result, c10::make_intrusive<DeferringProduct>(input, weight, std::move(weight_gradient), std::move(deferred)));
}

bool leads_to_a_parameter_alone(const at::Tensor& tensor) {
  auto node = gradient_edge(tensor).function;
  while (node) {
    const std::string name = node->name();
    if (name == "torch::autograd::AccumulateGrad") {
      const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get());
      return leaf && !has_hooks_of_program(leaf->variable);
    }
    if (name != "TBackward0" && name != "ToCopyBackward0" && name != "tessera::ToMarked") return false;
    node = node->next_edge(0).function;
  }
  return false;
}

at::Tensor in_product_precision(const at::Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return tensor;
  return tensor.is_floating_point() && tensor.scalar_type() != at::kDouble
             ? tensor.to(at::autocast::get_autocast_dtype(device))
             : tensor;
}

}  // namespace tessera::intercept
