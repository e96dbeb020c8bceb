#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace tessera {

/// The same memory as `view`, as a tensor that autograd does not know as a view: `Optimizer::zero_grad()` of LibTorch
/// detaches gradients in place, which views refuse.
inline at::Tensor plain_alias_of(const at::Tensor& view) {
  const at::NoGradGuard no_grad;
  return at::empty({0}, view.options()).set_(view.storage(), view.storage_offset(), view.sizes(), view.strides());
}

}  // namespace tessera
