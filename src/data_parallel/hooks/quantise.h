#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::data_parallel {

/// How a row of blocks lies in bytes: all values first, then a float scale for each block.
struct QuantisedRow {
  std::int64_t num_blocks = 0;
  std::int64_t block = 0;

  std::int64_t num_values() const { return num_blocks * block; }
  std::int64_t num_bytes() const { return num_blocks * (block + static_cast<std::int64_t>(sizeof(float))); }
};

/// Writes `values` [num_blocks, block] into `bytes` (int8 of length row.num_bytes()) and leaves in `values` what was
/// lost; zero where a block was not finite, so that it harms one step only. Such a block gets a scale that makes all
/// of it NaN.
void quantise(at::Tensor values, const QuantisedRow& row, const at::Tensor& bytes);

/// `sum` [num_blocks, block] += what `bytes` holds.
void add_dequantised(at::Tensor sum, const QuantisedRow& row, const at::Tensor& bytes);

/// Writes the first values of `bytes` into `values`, as many as it has, computing in `dtype`.
void dequantise_into(const at::Tensor& values, const QuantisedRow& row, const at::Tensor& bytes, at::ScalarType dtype);

}  // namespace tessera::data_parallel
