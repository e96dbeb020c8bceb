#include <tessera/intercept/gradient_node.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>
#include <utility>

namespace tessera::intercept {
namespace {

using torch::autograd::variable_list;

/// Takes a gradient before it is added, and leaves nothing to add.
class Catcher : public torch::autograd::FunctionPreHook {
 public:
  explicit Catcher(std::function<void(const at::Tensor&)> call) : call_(std::move(call)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (gradients.empty() || !gradients.front().defined()) return gradients;
    const at::Tensor& gradient = gradients.front();
    call_(gradient.is_sparse() ? gradient.to_dense() : gradient);
    return {at::Tensor()};
  }

 private:
  std::function<void(const at::Tensor&)> call_;
};

/// A node that only leads to others.
struct Fan : torch::autograd::Node {
  variable_list apply(variable_list&& /*gradients*/) override { return {}; }
};

}  // namespace

struct GradientNode::Node {
  explicit Node(c10::intrusive_ptr<torch::autograd::Node> its_accumulator) : accumulator(std::move(its_accumulator)) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    for (const std::uintptr_t key : post_hooks) accumulator->del_post_hook(key);
  }

  c10::intrusive_ptr<torch::autograd::Node> accumulator;
  std::vector<std::uintptr_t> post_hooks;
};

GradientNode::GradientNode(const at::Tensor& parameter)
    : node_(std::make_unique<Node>(torch::autograd::impl::grad_accumulator(parameter))) {}
GradientNode::~GradientNode() = default;
GradientNode::GradientNode(GradientNode&& other) noexcept = default;
GradientNode& GradientNode::operator=(GradientNode&& other) noexcept = default;

void GradientNode::after_adding(std::function<void()> call) {
  auto hook = [call = std::move(call)](const variable_list& outputs, const variable_list&) {
    call();
    return outputs;
  };
  node_->post_hooks.push_back(
      node_->accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(hook))));
}

void GradientNode::take(std::function<void(const at::Tensor& gradient)> call) {
  node_->accumulator->add_pre_hook(std::make_unique<Catcher>(std::move(call)));
}

bool GradientNode::is_of(const at::Tensor& parameter) const {
  return torch::autograd::impl::try_get_grad_accumulator(parameter) == node_->accumulator;
}

bool GradientNode::will_run() const {
  auto* const node = node_->accumulator.get();
  const auto* in_graph = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (in_graph && !in_graph->contains(node)) return false;
  // A pass for some inputs only plans which nodes run.
  const auto* planned = torch::autograd::get_current_graph_task_exec_info();
  if (!planned || planned->empty()) return true;
  const auto found = planned->find(node);
  return found != planned->end() && found->second.should_execute();
}

std::size_t GradientNode::num_users() const { return node_->accumulator.use_count(); }

bool other_graphs_live(const std::vector<const GradientNode*>& nodes, const std::vector<std::size_t>& num_others) {
  const auto* in_graph = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (!in_graph) return false;
  std::unordered_map<const torch::autograd::Node*, std::size_t> num_edges;
  for (const GradientNode* node : nodes) num_edges[node->node_->accumulator.get()] = 0;
  for (const torch::autograd::Node* node : *in_graph) {
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (const auto found = num_edges.find(edge.function.get()); found != num_edges.end()) ++found->second;
    }
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i]->num_users() > num_others[i] + num_edges[nodes[i]->node_->accumulator.get()]) return true;
  }
  return false;
}

at::Tensor output_that_reaches(const std::vector<at::Tensor>& parameters) {
  torch::autograd::edge_list edges;
  for (const at::Tensor& parameter : parameters) edges.push_back(torch::autograd::impl::gradient_edge(parameter));
  auto fan = c10::make_intrusive<Fan>();
  fan->set_next_edges(std::move(edges));
  const at::Tensor output = at::empty({0});
  torch::autograd::impl::set_gradient_edge(output, {std::move(fan), 0});
  return output;
}

}  // namespace tessera::intercept
