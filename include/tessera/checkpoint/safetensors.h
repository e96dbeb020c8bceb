#pragma once

#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/shard/slice.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace tessera {

/// Throws ConfigError for a type that safetensors does not have.
StoredDtype to_stored_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(StoredDtype dtype);

/// A safetensors file whose tensors are read as LibTorch's.
class SafetensorsFile : public SafetensorsBytes {
 public:
  using SafetensorsBytes::SafetensorsBytes;

  /// A tensor with memory of its own, on the CPU. Throws ConfigError when there is none of that name.
  at::Tensor read(const std::string& name) const;
  /// A part of a tensor, in the shape that the slice selects; flat if the slice takes only a range of the selected
  /// elements. Throws ConfigError
  /// when the slice is of another shape.
  at::Tensor read_slice(const std::string& name, const Slice& slice) const;
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
  /// Throws StorageError when the file cannot be made. `layout` must come from plan().
  SafetensorsWriter(const std::filesystem::path& path, SafetensorsLayout layout);
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) noexcept;

  const SafetensorsLayout& layout() const;

  /// Throws ConfigError when name, type or shape differs from the layout, or a byte was written before.
  void write(const std::string& name, const at::Tensor& tensor);
  void write_slice(const std::string& name, const Slice& slice, const at::Tensor& part);
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
