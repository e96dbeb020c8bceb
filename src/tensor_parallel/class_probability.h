#pragma once

#include <ATen/core/Tensor.h>

#include "tensor_parallel/sharded.h"

namespace tessera::tp {

/// The greatest value over a dimension that is cut, on every rank. It only keeps exp() in range, and has no gradient.
at::Tensor greatest(const at::Tensor& local, const CutData& cut);

/// Which classes of a dimension that is cut in one block are this rank's.
struct HeldClasses {
  at::Tensor place;    ///< in this rank's part, for each class; 0 for those of others
  at::Tensor is_held;  ///< whether it is there
};
HeldClasses held_classes(const at::Tensor& classes, const CutData& cut);

/// For each place the logarithm of the probability of its class, where the probabilities are the softmax along the
/// dimension that is cut, in one block. `classes` has the sizes of `local` without that dimension. One pass over the
/// scores and one tensor of their size kept, as in one process.
at::Tensor log_probability(const at::Tensor& local, const CutDataPtr& cut, const at::Tensor& classes);

}  // namespace tessera::tp
