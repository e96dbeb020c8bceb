#pragma once

#include <tessera/shard/slice.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Which part of a larger tensor this one is, as when tensor parallelism cuts a parameter before it is sharded; by
/// default all of itself. So code that shards, counts or saves a tensor never mistakes a part for the whole.
/// Throws ConfigError when the shape of the tensor has changed since set_global_slice().
Slice global_slice(const at::Tensor& tensor);

/// Sets the slice. It stays with the tensor, whatever memory the tensor gets: also after Module::to() and
/// torch::load(). Copies of the tensor, and the result of detach(), do not inherit it.
/// Throws ConfigError when the indices of the slice do not give the tensor's shape.
void set_global_slice(const at::Tensor& tensor, const Slice& slice);

/// As `tensor.set_data(memory)`, but the tensor keeps its BackendMeta and its dispatch keys; on another type of device,
/// those that are not of a device.
void set_memory(const at::Tensor& tensor, const at::Tensor& memory);

}  // namespace tessera
