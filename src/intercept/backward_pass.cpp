#include <tessera/intercept/backward_pass.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace tessera::intercept {

bool in_backward() { return backward_number() != -1; }

int backward_number() { return torch::autograd::get_current_graph_task_id(); }

bool keeps_graph() { return torch::autograd::get_current_graph_task_keep_graph(); }

void at_end_of_backward(std::function<void()> call) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(call));
}

}  // namespace tessera::intercept
