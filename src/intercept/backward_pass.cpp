#include <tessera/intercept/backward_pass.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

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

}  // namespace tessera::intercept
