#pragma once

#include <functional>
#include <thread>

namespace tessera::intercept {

/// Whether this thread is in a backward pass.
bool in_backward();
/// Autograd's number of this thread's backward pass, the same on all threads that work on it; -1 outside of a pass.
int backward_number();
/// The thread that called backward() of that pass: gradients of devices are computed on threads of autograd's own.
/// Outside of a pass, this thread. Known once a PassTracker exists.
std::thread::id thread_of_program();
/// Whether that pass retains the graph for another backward.
bool keeps_graph();
/// Calls `call` when that pass has computed all gradients, before backward() returns. When an exception ends the pass,
/// `call` is dropped without being called.
void at_end_of_backward(std::function<void()> call);
/// Runs `call` in a backward pass that computes nothing else. Exceptions of `call` are thrown from here.
/// Requires: this thread is in no backward pass.
void run_backward(const std::function<void()>& call);

}  // namespace tessera::intercept
