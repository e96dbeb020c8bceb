#pragma once

#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/checkpoint/tensor_slice.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace tessera {

class MappedFile;

/// Throws ConfigError for a type that safetensors has not.
StoredDtype to_stored_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(StoredDtype dtype);

/// A safetensors file, open for reading. Opening reads the header and checks all of it; a tensor's bytes are read from
/// the disk when they are asked for, and no others. A handle: cheap to copy.
/// Requires: nobody writes into the file or shortens it meanwhile. Ours are replaced, never changed.
/// Thread-safety: all members may be called from any thread.
class SafetensorsFile {
 public:
  /// Throws StorageError, saying what was expected and what was found, for a file that is not as the format asks.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const SafetensorsLayout& layout() const { return *layout_; }

  /// A tensor of its own memory, on the CPU. Throws ConfigError when there is none of that name.
  at::Tensor read(const std::string& name) const;
  /// A part of it. Throws ConfigError when the slice is not inside.
  at::Tensor read_slice(const std::string& name, const TensorSlice& slice) const;
  /// The bytes as they lie in the file, little-endian. They live as long as a copy of this object.
  std::span<const std::byte> bytes(const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<const SafetensorsLayout> layout_;
};

/// Writes a safetensors file in pieces, in any order; the file appears complete or not at all (see AtomicFile).
///
///   SafetensorsWriter writer(path, SafetensorsLayout::plan(tensors));
///   writer.write_slice("wte.weight", {{0, 0}, {100, 768}}, rows);
///   ...
///   writer.commit();
///
/// Thread-safety: none.
class SafetensorsWriter {
 public:
  /// Throws StorageError when the file cannot be made. `layout` must be one of plan().
  SafetensorsWriter(const std::filesystem::path& path, SafetensorsLayout layout);
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;

  const SafetensorsLayout& layout() const;

  /// Throws ConfigError when name, type or shape is another than the layout says, or a byte was written before.
  void write(const std::string& name, const at::Tensor& tensor);
  void write_slice(const std::string& name, const TensorSlice& slice, const at::Tensor& part);
  /// Bytes of a tensor from its byte `offset` on.
  void write_bytes(const std::string& name, std::uint64_t offset, std::span<const std::byte> bytes);

  /// Throws ConfigError when bytes are missing, naming the tensor; then the file does not appear.
  /// Blocks: for the disk.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

using TensorsByName = std::map<std::string, at::Tensor>;

/// All tensors of a file.
TensorsByName load_safetensors(const std::filesystem::path& path);
/// Blocks: for the disk.
void save_safetensors(const std::filesystem::path& path, const TensorsByName& tensors,
                      const SafetensorsLayout::Metadata& metadata = {});

}  // namespace tessera
