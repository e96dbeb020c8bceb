#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace tessera {

/// A tensor with the memory of `view` that autograd does not treat as a view: `Optimizer::zero_grad()` of LibTorch
/// detaches gradients in place, which throws for views.
inline at::Tensor plain_alias_of(const at::Tensor& view) {
  const at::NoGradGuard no_grad;
  return at::empty({0}, view.options()).set_(view.storage(), view.storage_offset(), view.sizes(), view.strides());
}

}  // namespace tessera
