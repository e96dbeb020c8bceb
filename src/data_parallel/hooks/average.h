#pragma once

#include <tessera/data_parallel/gradient_hook.h>

#include <vector>

namespace tessera::data_parallel {

/// Starts the exact sum of `tensor` over the ranks divided by `divisor`, in place. The returned function waits for it
/// and returns `tensor`.
GradientHook::Finish start_average(const at::Tensor& tensor, int divisor, const Communicator& comm);

/// Whether two lists hold the very same tensors.
bool same_tensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

/// What lossy hooks compute in: double for double gradients, else float.
at::ScalarType compute_dtype(const at::Tensor& gradients);

}  // namespace tessera::data_parallel
