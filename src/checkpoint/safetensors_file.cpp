#include <tessera/checkpoint/safetensors.h>
#include <tessera/core/error.h>
#include <tessera/core/mapped_file.h>

#include <ATen/ops/empty.h>

#include <bit>
#include <cstring>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/slice_runs.h"

namespace tessera {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian, and are copied as such");

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path),
      file_(std::make_shared<MappedFile>(path)),
      layout_(std::make_shared<SafetensorsLayout>(SafetensorsLayout::parse(file_->bytes(), path.string()))) {}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const StoredTensor& stored = layout_->at(name, path_.string());
  return file_->bytes().subspan(layout_->data_start() + stored.begin, stored.num_bytes());
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const StoredTensor& stored = layout_->at(name, path_.string());
  at::Tensor tensor = at::empty(stored.shape, at::TensorOptions(to_scalar_type(stored.dtype)));
  const auto source = bytes(name);
  if (!source.empty()) std::memcpy(tensor.data_ptr(), source.data(), source.size());
  return tensor;
}

at::Tensor SafetensorsFile::read_slice(const std::string& name, const TensorSlice& slice) const {
  const StoredTensor& stored = layout_->at(name, path_.string());
  const checkpoints::SliceRuns runs(stored.shape, slice,
                                    path_.string() + ": tensor " + checkpoints::shown(stored.name));
  at::Tensor part = at::empty(slice.sizes, at::TensorOptions(to_scalar_type(stored.dtype)));
  const auto element_bytes = static_cast<std::size_t>(dtype_bytes(stored.dtype));
  const std::size_t run_bytes = static_cast<std::size_t>(runs.run_length()) * element_bytes;
  const auto source = bytes(name);
  auto* target = static_cast<std::byte*>(part.data_ptr());
  runs.for_each([&](std::int64_t first) {
    std::memcpy(target, source.data() + static_cast<std::size_t>(first) * element_bytes, run_bytes);
    target += run_bytes;
  });
  return part;
}

TensorsByName load_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  TensorsByName tensors;
  for (const StoredTensor& stored : file.layout().tensors()) tensors.emplace(stored.name, file.read(stored.name));
  return tensors;
}

}  // namespace tessera
