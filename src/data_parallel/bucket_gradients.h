#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::data_parallel {

/// The parameters' gradients as views of the bucket's `buffer`, where and as the reducer lays them: one after another,
/// in the strides of their parameters where these leave no gaps, else row by row. What LibTorch's own GradBucket gives
/// is row by row always, and too short where parameters are complex: their buffer holds two real numbers for each.
std::vector<at::Tensor> gradients_in(const at::Tensor& buffer, const std::vector<at::Tensor>& parameters);

/// Averages of complex numbers are those of their parts: hooks and groups need not know of them.
at::Tensor as_real(const at::Tensor& tensor);

}  // namespace tessera::data_parallel
