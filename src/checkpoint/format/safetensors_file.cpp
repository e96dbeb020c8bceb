#include <tessera/checkpoint/safetensors.h>
#include <tessera/checkpoint/safetensors_folder.h>
#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>
#include <tessera/shard/slice_runs.h>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "checkpoint/format/safetensors_header.h"
#include "checkpoint/format/whole_tensors.h"
#include "checkpoint/plan/save_plan.h"

namespace tessera {
namespace {

constexpr std::array<std::pair<StoredDtype, at::ScalarType>, 17> kPairs = {{
    {StoredDtype::kBool, at::kBool},
    {StoredDtype::kU8, at::kByte},
    {StoredDtype::kI8, at::kChar},
    {StoredDtype::kF8E5M2, at::kFloat8_e5m2},
    {StoredDtype::kF8E4M3, at::kFloat8_e4m3fn},
    {StoredDtype::kF8E8M0, at::kFloat8_e8m0fnu},
    {StoredDtype::kI16, at::kShort},
    {StoredDtype::kU16, at::kUInt16},
    {StoredDtype::kF16, at::kHalf},
    {StoredDtype::kBF16, at::kBFloat16},
    {StoredDtype::kI32, at::kInt},
    {StoredDtype::kU32, at::kUInt32},
    {StoredDtype::kF32, at::kFloat},
    {StoredDtype::kC64, at::kComplexFloat},
    {StoredDtype::kF64, at::kDouble},
    {StoredDtype::kI64, at::kLong},
    {StoredDtype::kU64, at::kUInt64},
}};

}  // namespace

StoredDtype to_stored_dtype(at::ScalarType type) {
  for (const auto& [stored, scalar] : kPairs) {
    if (scalar == type) return stored;
  }
  throw ConfigError(std::string("a safetensors file has no type for tensors of ") + c10::toString(type) +
                    "; convert them first");
}

at::ScalarType to_scalar_type(StoredDtype dtype) {
  for (const auto& [stored, scalar] : kPairs) {
    if (stored == dtype) return scalar;
  }
  throw InternalError("no LibTorch type for the stored type " + std::string(dtype_name(dtype)));
}

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

namespace {

namespace fs = std::filesystem;

void refuse_other_form(const fs::path& folder, bool several) {
  const fs::path other = folder / (several ? kSingleFileName : kIndexFileName);
  if (!fs::exists(other)) return;
  throw ConfigError(folder.string() + " holds " + other.filename().string() + " already, and this save would write " +
                    (several ? "several files with an index" : "one file") +
                    " beside it; readers could not tell which is meant. Remove it, or save into another folder");
}

}  // namespace

at::Tensor SafetensorsFolder::read(const std::string& name) const {
  return checkpoints::tensor_of(at(name), bytes(name));
}

at::Tensor SafetensorsFolder::read_slice(const std::string& name, const Slice& slice) const {
  return checkpoints::part_of(at(name), bytes(name), slice, file_with(name).path());
}

void save_safetensors_folder(const fs::path& folder, const TensorsByName& tensors,
                             const SafetensorsLayout::Metadata& metadata, std::uint64_t max_file_bytes) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw StorageError("the folder " + folder.string() + " cannot be made: " + error.message());
  const auto files =
      checkpoints::files_of_group("model", checkpoints::stored_tensors(tensors), max_file_bytes, metadata);
  refuse_other_form(folder, files.size() > 1);
  for (const checkpoints::GroupFile& file : files) {
    if (file.layout) {
      checkpoints::write_whole_tensors(folder / file.name, *file.layout, tensors);
    } else {
      write_file_atomically(folder / file.name, file.text);
    }
  }
}

}  // namespace tessera
