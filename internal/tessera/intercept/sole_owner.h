#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::intercept {

/// Whether nobody but the caller has the tensor or its bytes, so that it may be written to. Also of a view, as t() of a
/// product is: it holds what it is a view of.
inline bool is_sole_owner(const at::Tensor& tensor) {
  if (tensor.use_count() != 1 || !tensor.has_storage()) return false;
  if (!tensor.is_view()) return tensor.storage().use_count() == 1;
  return tensor._base().use_count() == 1 && tensor.storage().use_count() == 2;
}

}  // namespace tessera::intercept
