#pragma once

#include <torch/csrc/autograd/graph_task.h>

namespace tessera::intercept {

/// Whether this thread is in a backward pass.
inline bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace tessera::intercept
