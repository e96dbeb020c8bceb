#pragma once

#include <tessera/checkpoint/safetensors_layout.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera {

class MappedFile;

/// A safetensors file, open for reading. Opening reads the header and checks all of it; a tensor's bytes are read from
/// the disk when they are looked at, and no others. A handle: cheap to copy.
/// Requires: nobody writes into the file or shortens it meanwhile. Ours are replaced, never changed.
/// Thread-safety: all members may be called from any thread.
class SafetensorsBytes {
 public:
  /// Throws StorageError, saying what was expected and what was found, for a file that is not as the format asks.
  explicit SafetensorsBytes(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const SafetensorsLayout& layout() const { return *layout_; }

  /// The bytes as they lie in the file, little-endian. They live as long as a copy of this object.
  /// Throws ConfigError when there is none of that name.
  std::span<const std::byte> bytes(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<const SafetensorsLayout> layout_;
};

/// The tensors of a model that was saved as Hugging Face does: one safetensors file, or several with an index.
/// Thread-safety: all members may be called from any thread.
class SafetensorsFolderBytes {
 public:
  /// `path` is a safetensors file, an index (`*.json`), or a folder with either. Opens and checks all files.
  /// Throws StorageError when index and files do not agree, ConfigError when a folder holds neither or both forms.
  explicit SafetensorsFolderBytes(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// Sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return place_of_.contains(name); }
  /// These throw ConfigError when there is none of that name.
  const StoredTensor& at(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const { return file_with(name).bytes(name); }

 protected:
  const SafetensorsBytes& file_with(const std::string& name) const;

 private:
  void open_indexed(const std::filesystem::path& index);
  void open_single(const std::filesystem::path& file);

  std::filesystem::path path_;
  std::vector<SafetensorsBytes> files_;
  std::map<std::string, std::size_t> place_of_;  // in files_
};

}  // namespace tessera
