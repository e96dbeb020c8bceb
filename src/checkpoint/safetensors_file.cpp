#include <tessera/checkpoint/safetensors.h>

#include <ATen/ops/empty.h>

#include <bit>
#include <cstring>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/slice_runs.h"
#include "checkpoint/whole_tensors.h"

namespace tessera {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian, and are copied as such");

namespace checkpoints {

at::Tensor tensor_of(const StoredTensor& stored, std::span<const std::byte> bytes) {
  at::Tensor tensor = at::empty(stored.shape, at::TensorOptions(to_scalar_type(stored.dtype)));
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

at::Tensor part_of(const StoredTensor& stored, std::span<const std::byte> bytes, const TensorSlice& slice,
                   const std::filesystem::path& file) {
  const SliceRuns runs(stored.shape, slice, file.string() + ": tensor " + shown(stored.name));
  at::Tensor part = at::empty(slice.sizes, at::TensorOptions(to_scalar_type(stored.dtype)));
  const auto element_bytes = static_cast<std::size_t>(dtype_bytes(stored.dtype));
  const std::size_t run_bytes = static_cast<std::size_t>(runs.run_length()) * element_bytes;
  auto* target = static_cast<std::byte*>(part.data_ptr());
  runs.for_each([&](std::int64_t first) {
    std::memcpy(target, bytes.data() + static_cast<std::size_t>(first) * element_bytes, run_bytes);
    target += run_bytes;
  });
  return part;
}

}  // namespace checkpoints

at::Tensor SafetensorsFile::read(const std::string& name) const {
  return checkpoints::tensor_of(layout().at(name, path().string()), bytes(name));
}

at::Tensor SafetensorsFile::read_slice(const std::string& name, const TensorSlice& slice) const {
  return checkpoints::part_of(layout().at(name, path().string()), bytes(name), slice, path());
}

TensorsByName load_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  TensorsByName tensors;
  for (const StoredTensor& stored : file.layout().tensors()) tensors.emplace(stored.name, file.read(stored.name));
  return tensors;
}

}  // namespace tessera
