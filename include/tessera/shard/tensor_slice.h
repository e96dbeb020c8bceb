#pragma once

#include <tessera/shard/slice.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

/// What one rank holds of a tensor that may lie on many.
struct TensorSlice {
  std::string name;   ///< of the whole tensor
  Slice slice;        ///< of it
  at::Tensor values;  ///< as many as the slice has, in its order; shares memory with what is trained
};

}  // namespace tessera
