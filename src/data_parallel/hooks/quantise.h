#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::data_parallel {

/// The layout of a quantised part of a bucket, which consists of blocks: all values first, then a float scale for each
/// block.
struct QuantisedPart {
  std::int64_t num_blocks = 0;
  std::int64_t block = 0;

  std::int64_t num_values() const { return num_blocks * block; }
  std::int64_t num_bytes() const { return num_blocks * (block + static_cast<std::int64_t>(sizeof(float))); }
};

/// Writes `values` [num_blocks, block] into `bytes` (int8 of length part.num_bytes()) and leaves the rounding errors in
/// `values`. A block that is not finite gets a scale that makes all of it NaN, and errors of zero, so that it harms one
/// step only.
void quantise(at::Tensor values, const QuantisedPart& part, const at::Tensor& bytes);

/// Adds the values that `bytes` holds to `sum` [num_blocks, block].
void add_dequantised(at::Tensor sum, const QuantisedPart& part, const at::Tensor& bytes);

/// Fills `values` with the first values of `bytes`, computing in `dtype`.
void dequantise_into(const at::Tensor& values, const QuantisedPart& part, const at::Tensor& bytes,
                     at::ScalarType dtype);

}  // namespace tessera::data_parallel
