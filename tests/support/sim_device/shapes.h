#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tessera::testing::sim {

/// What an operator would give for arguments of these shapes, as meta tensors, and behind it what it makes of the
/// arguments that it writes to, in their order. Asks Meta kernels, and where there is none the CPU's, with zeros.
torch::jit::Stack shapes_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, bool makes_views);

}  // namespace tessera::testing::sim
