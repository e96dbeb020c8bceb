#pragma once

#include <tessera/shard/slice.h>

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

/// What one rank holds of a tensor that may be spread over many ranks.
struct TensorSlice {
  std::string name;   ///< of the whole tensor
  Slice slice;        ///< of it
  at::Tensor values;  ///< the elements of the slice, in its order; shares memory with the tensor that is trained
};

}  // namespace tessera
