#pragma once

#include <tessera/checkpoint/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

/// A folder of Hugging Face's kind, or a single file, whose tensors are read as LibTorch's.
class SafetensorsFolder : public SafetensorsFolderBytes {
 public:
  using SafetensorsFolderBytes::SafetensorsFolderBytes;

  /// These throw ConfigError when there is none of that name.
  at::Tensor read(const std::string& name) const;
  at::Tensor read_slice(const std::string& name, const Slice& slice) const;
};

/// Writes the tensors into a folder, which is created when missing, so that SafetensorsFolder and Hugging Face's
/// libraries read them: one file if they fit into `max_file_bytes`, else several, filled by name in turn, and the index
/// last. A single tensor may be larger. Each file is atomic, several together are not: to get all or nothing, save into
/// a new folder. Throws ConfigError when the folder already holds the other form: readers could not tell which one is
/// meant. Blocks: for the disk.
void save_safetensors_folder(const std::filesystem::path& folder, const TensorsByName& tensors,
                             const SafetensorsLayout::Metadata& metadata = {},
                             std::uint64_t max_file_bytes = std::uint64_t{5} << 30);

}  // namespace tessera
