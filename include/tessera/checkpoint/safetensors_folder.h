#pragma once

#include <tessera/checkpoint/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera {

/// The tensors of a model that was saved as Hugging Face does: one safetensors file, or several with an index.
/// Thread-safety: all members may be called from any thread.
class SafetensorsFolder {
 public:
  /// `path` is a safetensors file, an index (`*.json`), or a folder with either. Opens and checks all files.
  /// Throws StorageError when index and files do not agree, ConfigError when a folder holds neither or both forms.
  explicit SafetensorsFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// Sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return place_of_.contains(name); }
  /// These throw ConfigError when there is none of that name.
  const StoredTensor& at(const std::string& name) const;
  at::Tensor read(const std::string& name) const;
  at::Tensor read_slice(const std::string& name, const TensorSlice& slice) const;

 private:
  const SafetensorsFile& file_with(const std::string& name) const;
  void open_indexed(const std::filesystem::path& index);
  void open_single(const std::filesystem::path& file);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t> place_of_;  // in files_
};

/// Writes the tensors into a folder, made when missing, so that SafetensorsFolder and Hugging Face's libraries read
/// them: one file if they fit into `max_file_bytes`, else several, filled by name in turn, and the index last. A single
/// tensor may be larger. Each file is atomic, several together are not: for all or nothing save into a new folder.
/// Throws ConfigError when the folder holds the other form already, which readers would take for the newer.
/// Blocks: for the disk.
void save_safetensors_folder(const std::filesystem::path& folder, const TensorsByName& tensors,
                             const SafetensorsLayout::Metadata& metadata = {},
                             std::uint64_t max_file_bytes = std::uint64_t{5} << 30);

}  // namespace tessera
