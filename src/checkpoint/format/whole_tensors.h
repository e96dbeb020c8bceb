#pragma once

#include <tessera/checkpoint/safetensors.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace tessera::checkpoints {

/// The description of each tensor, for a layout.
std::vector<StoredTensor> stored_tensors(const TensorsByName& tensors);

/// Writes a whole file with the tensors of `layout`, each of which `tensors` holds. Blocks: for the disk.
void write_whole_tensors(const std::filesystem::path& path, const SafetensorsLayout& layout,
                         const TensorsByName& tensors);

/// The shape of the elements that a slice takes.
std::vector<std::int64_t> shape_of(const Slice& slice);
/// Throws ConfigError, naming the tensor by `what`, for a slice of another shape.
void require_shape(const StoredTensor& stored, const Slice& slice, const std::string& what);

/// A tensor with memory of its own from the bytes of a file.
at::Tensor tensor_of(const StoredTensor& stored, std::span<const std::byte> bytes);
/// The same for a part of it; `file` is for messages. Throws ConfigError when the slice is of another shape.
at::Tensor part_of(const StoredTensor& stored, std::span<const std::byte> bytes, const Slice& slice,
                   const std::filesystem::path& file);

}  // namespace tessera::checkpoints
