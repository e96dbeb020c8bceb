#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "support/tested_device.h"

namespace tessera::testing {

/// Of gradients and of what double precision trains, relative to a tensor's largest value, where kernels differ.
constexpr double kOtherKernels = 1e-5;
/// Of weights that several steps in single precision trained: what rounding leaves grows from step to step.
constexpr double kOtherKernelsTrained = 1e-3;
/// Of what was rounded to few bits on its way: a value that lies between two of them goes either way.
constexpr double kOtherKernelsCoarse = 1e-2;

/// What one side computed on the CPU and the other on the device: the same bits, if the device has the CPU's kernels.
inline bool same_values(const at::Tensor& found, const at::Tensor& expected, double tolerance = kOtherKernels) {
  if (tested::kSameKernels) return at::equal(found, expected);
  if (found.sizes() != expected.sizes() || found.scalar_type() != expected.scalar_type()) return false;
  if (expected.numel() == 0) return true;
  const at::Tensor wanted = expected.to(at::kDouble);
  const double largest = wanted.abs().max().item<double>();
  const double difference = (found.to(at::kDouble) - wanted).abs().max().item<double>();
  return difference <= tolerance * std::max(largest, 1e-30);  // false for what is no number
}

/// For a tolerance that another comparison has anyway.
inline double at_least_of_kernels(double tolerance, double of_other_kernels = kOtherKernels) {
  return tested::kSameKernels ? tolerance : std::max(tolerance, of_other_kernels);
}

}  // namespace tessera::testing
