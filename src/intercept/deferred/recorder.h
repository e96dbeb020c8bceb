#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

namespace tessera::intercept {

/// What an operator does that is called under a DeferredInit: a kernel for every operator.
///
/// Note [Values that are computed later]
/// Operators on tensors without bytes come in five kinds. Those made of others run as they are, and their parts come
/// here. Views need no bytes. Writes are remembered by the storage they write to; random ones are also run, in memory
/// that is dropped, so that the generator goes on as it would. Results of all others are computed, from inputs that are
/// given their values for the moment, and when they are large their bytes are dropped and the operator remembered. What
/// is remembered lies with the storage (`History`) and is gone with it; there is no table.
void call_deferred(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace tessera::intercept
