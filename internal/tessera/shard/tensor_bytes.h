#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// A one-dimensional tensor in existing memory. No inference tensor, even when it is made under InferenceMode.
at::Tensor tensor_on(c10::DataPtr bytes, std::int64_t num_elements, at::ScalarType dtype);

/// The memory of a tensor. The tensor lives as long as the returned pointer.
c10::DataPtr bytes_of(at::Tensor tensor);

/// A hash of the bytes: with overwhelming probability it differs when a byte does. Waits for a device. Requires:
/// contiguous.
std::uint64_t fingerprint_of(const at::Tensor& tensor);

/// The same of several tensors, wherever their elements lie. Some may be undefined.
std::uint64_t fingerprint_of(const std::vector<at::Tensor>& tensors);

}  // namespace tessera
