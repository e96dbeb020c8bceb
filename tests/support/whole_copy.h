#pragma once

#include <ATen/ATen.h>

namespace tessera::testing {

/// An ordinary tensor with the values of one that may be cut. All ranks that share it must call this.
inline at::Tensor whole_copy(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().requires_grad(false)).copy_(tensor.detach());
}

}  // namespace tessera::testing
