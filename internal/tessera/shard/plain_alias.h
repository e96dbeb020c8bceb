#pragma once

#include <ATen/ATen.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>

namespace tessera {

/// A tensor with the memory of `view` that autograd does not treat as a view: `Optimizer::zero_grad()` of LibTorch
/// detaches gradients in place, which throws for views. Made by hand: `set_` reads the data pointer, which a storage
/// may not have at the moment.
inline at::Tensor plain_alias_of(const at::Tensor& view) {
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(view.storage()),
      c10::DispatchKeySet(c10::computeDispatchKey(view.scalar_type(), c10::kStrided, view.device())), view.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
  return alias;
}

}  // namespace tessera
