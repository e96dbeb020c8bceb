#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>

namespace tessera {

/// A one-dimensional tensor in memory that exists. An ordinary one, also when it is made under InferenceMode.
at::Tensor tensor_on(c10::DataPtr bytes, std::int64_t num_elements, at::ScalarType dtype);

/// The memory of a tensor, which lives as long as that is held.
c10::DataPtr bytes_of(at::Tensor tensor);

/// Differs, for all that can be expected, when a byte does. Requires: contiguous, on the CPU.
std::uint64_t fingerprint_of(const at::Tensor& tensor);

}  // namespace tessera
