#include <tessera/intercept/backward_pass.h>
#include <tessera/intercept/custom_node.h>
#include <tessera/intercept/gradient_node.h>
#include <tessera/intercept/gradient_notice.h>
#include <tessera/intercept/pass_tracker.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "intercept/engine_front.h"

namespace tessera::intercept {
namespace {

/// A node that calls a function, and leads nowhere.
struct CallingNode : torch::autograd::Node {
  explicit CallingNode(const std::function<void()>& its_call) : call(its_call) { add_input_metadata(at::empty({0})); }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*gradients*/) override {
    call();
    return {};
  }
  const std::function<void()>& call;
};

}  // namespace

bool in_backward() { return backward_number() != -1; }

int backward_number() { return torch::autograd::get_current_graph_task_id(); }

bool keeps_graph() { return torch::autograd::get_current_graph_task_keep_graph(); }

void at_end_of_backward(std::function<void()> call) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(call));
}

void run_backward(const std::function<void()>& call) {
  const at::Tensor output = at::empty({0});
  torch::autograd::impl::set_gradient_edge(output, {c10::make_intrusive<CallingNode>(call), 0});
  torch::autograd::backward({output}, {at::empty({0})});
}

using Hooks = std::remove_reference_t<decltype(torch::autograd::impl::hooks(std::declval<const at::Tensor&>()))>;

struct HooksAside::Aside {
  at::Tensor leaf;
  Hooks hooks;
};

HooksAside::HooksAside(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    auto& hooks = torch::autograd::impl::hooks(leaf);
    if (!hooks.empty()) aside_.push_back(std::make_unique<Aside>(Aside{leaf, std::exchange(hooks, {})}));
  }
}

HooksAside::~HooksAside() {
  for (const auto& aside : aside_) torch::autograd::impl::hooks(aside->leaf) = std::move(aside->hooks);
}

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

class AfterAdding : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterAdding(std::function<void()> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

/// Known by its type among the functions that register_hook() was given.
struct OwnHook {
  at::TensorBase operator()(const at::TensorBase& gradient) const { return call(at::Tensor(gradient)); }
  std::function<at::Tensor(const at::Tensor&)> call;
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
  node_->post_hooks.push_back(node_->accumulator->add_post_hook(std::make_unique<AfterAdding>(std::move(call))));
}

void GradientNode::take(std::function<void(const at::Tensor& gradient)> call) {
  node_->accumulator->add_pre_hook(std::make_unique<Catcher>(std::move(call)));
}

void register_own_hook(const at::Tensor& parameter, std::function<at::Tensor(const at::Tensor& gradient)> hook) {
  at::impl::GetVariableHooks()->_register_hook(parameter, OwnHook{std::move(hook)});
}

bool has_hooks_of_program(const at::Tensor& parameter) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(parameter);
  if (!meta) return false;
  std::size_t num_lists = 0;
  if (meta->cpp_hooks_list_) {
    num_lists = 1;
    for (const auto& hook : *meta->cpp_hooks_list_) {
      if (hook && !hook.target<OwnHook>()) return true;
    }
  }
  if (meta->hooks_.size() > num_lists) return true;
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!node) return false;
  const auto is_other = [](const auto& own) { return [own](const auto& hook) { return !own(hook.get()); }; };
  const auto is_catcher = [](const auto* hook) { return dynamic_cast<const Catcher*>(hook) != nullptr; };
  const auto is_notice = [](const auto* hook) { return dynamic_cast<const AfterAdding*>(hook) != nullptr; };
  return std::ranges::any_of(node->pre_hooks(), is_other(is_catcher)) ||
         std::ranges::any_of(node->post_hooks(), is_other(is_notice)) || !node->retains_grad_hooks().empty();
}

bool GradientNode::is_of(const at::Tensor& parameter) const {
  return torch::autograd::impl::try_get_grad_accumulator(parameter) == node_->accumulator;
}

bool GradientNode::will_run() const {
  auto* const node = node_->accumulator.get();
  const auto* in_graph = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (in_graph && !in_graph->contains(node)) return false;
  // A pass for some inputs only has a plan of the nodes that run.
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

// A post-accumulate hook, not a pre-hook: Tensor::register_hook drops pre-hooks that it did not make itself.
class GradientNotice::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::function<void()> notice, std::unique_ptr<PostAccumulateGradHook> before)
      : notice_(std::move(notice)), before_(std::move(before)) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    if (before_) (*before_)(tensor);
    if (notice_) notice_();
  }
  /// For a hook that must stay, because another hook wraps it.
  void be_silent() { notice_ = nullptr; }
  std::unique_ptr<PostAccumulateGradHook> take_before() { return std::move(before_); }

 private:
  std::function<void()> notice_;
  std::unique_ptr<PostAccumulateGradHook> before_;  // a tensor has only one hook, so it is wrapped
};

GradientNotice::GradientNotice(at::Tensor parameter, std::function<void()> notice) : parameter_(std::move(parameter)) {
  torch::autograd::impl::materialize_autograd_meta(parameter_);  // a parameter that was always frozen has none
  auto& place = torch::autograd::impl::post_acc_grad_hooks(parameter_);
  auto hook = std::make_unique<Hook>(std::move(notice), std::move(place));
  hook_ = hook.get();
  torch::autograd::impl::set_post_acc_grad_hooks(parameter_, std::move(hook));
}

GradientNotice::~GradientNotice() { close(); }

GradientNotice::GradientNotice(GradientNotice&& other) noexcept
    : parameter_(std::move(other.parameter_)), hook_(std::exchange(other.hook_, nullptr)) {}

GradientNotice& GradientNotice::operator=(GradientNotice&& other) noexcept {
  if (this == &other) return *this;
  close();
  parameter_ = std::move(other.parameter_);
  hook_ = std::exchange(other.hook_, nullptr);
  return *this;
}

void GradientNotice::close() noexcept {
  if (!hook_) return;
  auto& place = torch::autograd::impl::post_acc_grad_hooks(parameter_);
  if (place.get() == hook_) {
    place = hook_->take_before();
  } else {
    hook_->be_silent();
  }
  hook_ = nullptr;
}

Pass present_pass() {
  if (in_backward()) return Pass::kBackward;
  return at::GradMode::is_enabled() ? Pass::kForward : Pass::kEvaluation;
}

/// Owned by the callback of a backward pass: see Note [Passes].
struct PassTracker::Token {
  Token(std::weak_ptr<PassListener> its_listener, PassTracker& its_tracker, int its_pass)
      : listener(std::move(its_listener)), tracker(its_tracker), pass(its_pass) {}
  ~Token() {
    if (has_ended) return;
    if (const auto alive = listener.lock()) tracker.drop(pass);
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;

  void end() {
    has_ended = true;
    if (const auto alive = listener.lock()) tracker.end(pass);
  }

  std::weak_ptr<PassListener> listener;
  PassTracker& tracker;
  int pass;
  bool has_ended = false;
};

PassTracker::PassTracker(std::weak_ptr<PassListener> listener)
    : listener_(std::move(listener)), thread_(std::this_thread::get_id()) {
  EngineFront::install();  // which notes who calls: see Note [Threads of a pass]
}

bool PassTracker::is_own_thread() const {
  return std::this_thread::get_id() == thread_ || (in_backward() && thread_of_program() == thread_);
}

bool PassTracker::is_in_pass() const { return phase_ == Phase::kBackward && backward_number() == pass_; }

void PassTracker::enter_backward() {
  const int pass = backward_number();
  if (pass == pass_) return;
  find_failure();
  if (phase_ == Phase::kBackward) {
    if (const auto listener = listener_.lock()) listener->on_nested_backward();
    phase_ = Phase::kForward;
  }
  pass_ = pass;
  at_end_of_backward([token = std::make_shared<Token>(listener_, *this, pass)] { token->end(); });
}

void PassTracker::enter_gradients() {
  enter_backward();
  if (phase_ == Phase::kBackward) return;
  averages_ = !only_adds();
  keeps_graph_ = intercept::keeps_graph();
  if (const auto listener = listener_.lock()) listener->on_backward();
  phase_ = Phase::kBackward;
}

void PassTracker::end(int pass) {
  if (pass != pass_) return;
  pass_ = kNoPass;
  const bool had_gradients = phase_ == Phase::kBackward;
  if (had_gradients) phase_ = Phase::kBetween;
  if (const auto listener = listener_.lock()) listener->on_backward_end(had_gradients);
}

void PassTracker::drop(int pass) noexcept {
  if (pass != pass_) return;
  failed_ = true;
  if (const auto listener = listener_.lock()) listener->on_backward_dropped();
}

void PassTracker::find_failure() {
  if (!failed_.exchange(false)) return;
  pass_ = kNoPass;
  phase_ = Phase::kBetween;
  if (const auto listener = listener_.lock()) listener->on_backward_failure();
}

}  // namespace tessera::intercept
