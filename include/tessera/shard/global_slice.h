#pragma once

#include <tessera/shard/slice.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Which part of which larger tensor this one is, as tensor parallelism cuts a parameter before others share it; all of
/// itself, if nobody has said otherwise. So who shards, counts or saves a tensor never takes a part for the whole.
/// Throws ConfigError when the tensor has got another shape since that was said.
Slice global_slice(const at::Tensor& tensor);

/// Says so. It stays with the tensor, whoever holds it and whatever memory it gets: also after Module::to() and
/// torch::load(). Copies of the tensor and detach() are tensors of their own.
/// Throws ConfigError when the indices of the slice do not give the tensor's shape.
void set_global_slice(const at::Tensor& tensor, const Slice& slice);

/// As `tensor.set_data(memory)`, and the tensor keeps what it carries beside its memory: its BackendMeta and its
/// dispatch keys. Requires: both are on one kind of device.
void set_memory(const at::Tensor& tensor, const at::Tensor& memory);

}  // namespace tessera
