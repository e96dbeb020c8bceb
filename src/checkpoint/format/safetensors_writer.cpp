#include <tessera/checkpoint/safetensors.h>
#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>
#include <tessera/shard/slice_runs.h>

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "checkpoint/format/byte_ranges.h"
#include "checkpoint/format/safetensors_header.h"
#include "checkpoint/format/whole_tensors.h"

namespace tessera {

struct SafetensorsWriter::State {
  AtomicFile file;
  SafetensorsLayout layout;
  std::vector<checkpoints::ByteRanges> written;  // of each tensor of the layout

  std::string place_of(const StoredTensor& stored) const {
    return file.path().string() + ": tensor " + checkpoints::shown(stored.name);
  }
};

namespace {

using Bytes = std::span<const std::byte>;

/// The elements in row-major order, on the CPU.
at::Tensor in_order(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().cpu().contiguous();
}

void check_type(const StoredTensor& stored, const at::Tensor& tensor, const std::string& place) {
  const StoredDtype found = to_stored_dtype(tensor.scalar_type());
  if (found == stored.dtype) return;
  throw ConfigError(place + ": the layout says " + std::string(dtype_name(stored.dtype)) + ", found a tensor of " +
                    std::string(dtype_name(found)));
}

void check_shape(const std::vector<std::int64_t>& expected, const at::Tensor& tensor, const std::string& place) {
  if (tensor.sizes() == expected) return;
  throw ConfigError(place + ": expected the shape " + checkpoints::shape_text(expected) + ", found " +
                    checkpoints::shape_text(tensor.sizes().vec()));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, SafetensorsLayout layout)
    : state_(std::make_unique<State>(State{AtomicFile(path), std::move(layout), {}})) {
  state_->written.resize(state_->layout.tensors().size());
  const std::string header = state_->layout.header();
  if (header.size() != state_->layout.data_start()) {
    throw InternalError(path.string() + ": a layout that was read from a file cannot be written; use plan()");
  }
  state_->file.write_at(0, std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;

const SafetensorsLayout& SafetensorsWriter::layout() const { return state_->layout; }

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const StoredTensor& stored = state_->layout.at(name, state_->file.path().string());
  check_type(stored, tensor, state_->place_of(stored));
  check_shape(stored.shape, tensor, state_->place_of(stored));
  const at::Tensor source = in_order(tensor);
  write_bytes(name, 0, Bytes(static_cast<const std::byte*>(source.const_data_ptr()), source.nbytes()));
}

void SafetensorsWriter::write_slice(const std::string& name, const Slice& slice, const at::Tensor& part) {
  const StoredTensor& stored = state_->layout.at(name, state_->file.path().string());
  checkpoints::require_shape(stored, slice, state_->place_of(stored));
  check_type(stored, part, state_->place_of(stored));
  check_shape(checkpoints::shape_of(slice), part, state_->place_of(stored));
  const at::Tensor source = in_order(part);
  const auto element_bytes = static_cast<std::uint64_t>(dtype_bytes(stored.dtype));
  const Bytes bytes(static_cast<const std::byte*>(source.const_data_ptr()), source.nbytes());
  const SliceRuns runs(slice);
  for (std::int64_t i = 0; i < runs.num_runs(); ++i) {
    const SliceRuns::Run run = runs.at(i);
    write_bytes(name, static_cast<std::uint64_t>(run.first) * element_bytes,
                bytes.subspan(static_cast<std::size_t>(run.begin) * element_bytes,
                              static_cast<std::size_t>(run.length) * element_bytes));
  }
}

void SafetensorsWriter::write_bytes(const std::string& name, std::uint64_t offset, Bytes bytes) {
  const StoredTensor& stored = state_->layout.at(name, state_->file.path().string());
  if (offset > stored.num_bytes() || bytes.size() > stored.num_bytes() - offset) {
    throw ConfigError(state_->place_of(stored) + " has " + std::to_string(stored.num_bytes()) + " bytes; " +
                      std::to_string(bytes.size()) + " from byte " + std::to_string(offset) + " on do not fit");
  }
  const auto place = static_cast<std::size_t>(&stored - state_->layout.tensors().data());
  if (!state_->written[place].add(offset, offset + bytes.size())) {
    throw ConfigError(state_->place_of(stored) + ": bytes " + std::to_string(offset) + " to " +
                      std::to_string(offset + bytes.size()) + " were written before, all or in part");
  }
  state_->file.write_at(state_->layout.data_start() + stored.begin + offset, bytes);
}

void SafetensorsWriter::commit() {
  const std::vector<StoredTensor>& tensors = state_->layout.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto missing = state_->written[i].first_missing(tensors[i].num_bytes());
    if (!missing) continue;
    throw ConfigError(state_->place_of(tensors[i]) + ": byte " + std::to_string(*missing) + " of " +
                      std::to_string(tensors[i].num_bytes()) + " was not written");
  }
  state_->file.commit();
}

namespace checkpoints {

std::vector<StoredTensor> stored_tensors(const TensorsByName& tensors) {
  std::vector<StoredTensor> list;
  for (const auto& [name, tensor] : tensors) {
    list.push_back({name, to_stored_dtype(tensor.scalar_type()), tensor.sizes().vec(), 0, 0});
  }
  return list;
}

void write_whole_tensors(const std::filesystem::path& path, const SafetensorsLayout& layout,
                         const TensorsByName& tensors) {
  SafetensorsWriter writer(path, layout);
  for (const StoredTensor& stored : layout.tensors()) writer.write(stored.name, tensors.at(stored.name));
  writer.commit();
}

}  // namespace checkpoints

void save_safetensors(const std::filesystem::path& path, const TensorsByName& tensors,
                      const SafetensorsLayout::Metadata& metadata) {
  const auto layout = SafetensorsLayout::plan(checkpoints::stored_tensors(tensors), metadata);
  checkpoints::write_whole_tensors(path, layout, tensors);
}

}  // namespace tessera
