#pragma once

#include <functional>

namespace tessera::intercept {

/// Whether this thread is in a backward pass.
bool in_backward();
/// Autograd's number of that pass: the same on all threads that work on it. -1 outside of one.
int backward_number();
/// Whether that pass leaves the graph as it is, to be gone through again.
bool keeps_graph();
/// Calls it when that pass has computed all gradients, before backward() returns. When an exception ends the pass it is
/// dropped without a call.
void at_end_of_backward(std::function<void()> call);
/// Calls it in a backward pass of its own, which computes nothing else. What it throws comes out of here.
/// Requires: this thread is in none.
void run_backward(const std::function<void()>& call);

}  // namespace tessera::intercept
