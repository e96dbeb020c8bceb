#pragma once

#include <tessera/checkpoint/safetensors.h>

#include <filesystem>
#include <vector>

namespace tessera::checkpoints {

/// What they are, for a layout.
std::vector<StoredTensor> stored_tensors(const TensorsByName& tensors);

/// A whole file with the tensors of `layout`, each of which `tensors` holds. Blocks: for the disk.
void write_whole_tensors(const std::filesystem::path& path, const SafetensorsLayout& layout,
                         const TensorsByName& tensors);

}  // namespace tessera::checkpoints
