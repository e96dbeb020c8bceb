#include <tessera/checkpoint/safetensors.h>
#include <tessera/core/error.h>
#include <tessera/shard/slice_runs.h>

#include <ATen/ops/empty.h>

#include <bit>
#include <cstring>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/whole_tensors.h"

namespace tessera {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian, and are copied as such");

namespace checkpoints {

std::vector<std::int64_t> shape_of(const Slice& slice) {
  return slice.takes_all_selected() ? slice.selected_shape() : std::vector<std::int64_t>{slice.num_elements()};
}

void require_shape(const StoredTensor& stored, const Slice& slice, const std::string& what) {
  if (slice.shape() == stored.shape) return;
  throw ConfigError(what + " has the shape " + shape_text(stored.shape) + "; found a slice, " + slice.text());
}

at::Tensor tensor_of(const StoredTensor& stored, std::span<const std::byte> bytes) {
  at::Tensor tensor = at::empty(stored.shape, at::TensorOptions(to_scalar_type(stored.dtype)));
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

at::Tensor part_of(const StoredTensor& stored, std::span<const std::byte> bytes, const Slice& slice,
                   const std::filesystem::path& file) {
  require_shape(stored, slice, file.string() + ": tensor " + shown(stored.name));
  const SliceRuns runs(slice);
  at::Tensor part = at::empty(shape_of(slice), at::TensorOptions(to_scalar_type(stored.dtype)));
  const auto element_bytes = static_cast<std::size_t>(dtype_bytes(stored.dtype));
  auto* const target = static_cast<std::byte*>(part.data_ptr());
  for (std::int64_t i = 0; i < runs.num_runs(); ++i) {
    const SliceRuns::Run run = runs.at(i);
    std::memcpy(target + static_cast<std::size_t>(run.begin) * element_bytes,
                bytes.data() + static_cast<std::size_t>(run.first) * element_bytes,
                static_cast<std::size_t>(run.length) * element_bytes);
  }
  return part;
}

}  // namespace checkpoints

at::Tensor SafetensorsFile::read(const std::string& name) const {
  return checkpoints::tensor_of(layout().at(name, path().string()), bytes(name));
}

at::Tensor SafetensorsFile::read_slice(const std::string& name, const Slice& slice) const {
  return checkpoints::part_of(layout().at(name, path().string()), bytes(name), slice, path());
}

TensorsByName load_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  TensorsByName tensors;
  for (const StoredTensor& stored : file.layout().tensors()) tensors.emplace(stored.name, file.read(stored.name));
  return tensors;
}

}  // namespace tessera
