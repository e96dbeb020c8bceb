#include "checkpoint/group_files.h"

#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/shard/slice.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace tessera::checkpoints {
namespace {

std::uint64_t tensor_bytes(const StoredTensor& tensor) {
  return static_cast<std::uint64_t>(num_elements_of(tensor.shape) * dtype_bytes(tensor.dtype));
}

std::vector<std::vector<StoredTensor>> divide(std::vector<StoredTensor> tensors, std::uint64_t max_file_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<std::vector<StoredTensor>> files(1);
  std::uint64_t in_file = 0;
  for (StoredTensor& tensor : tensors) {
    const std::uint64_t size = tensor_bytes(tensor);
    if (!files.back().empty() && in_file + size > max_file_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    in_file += size;
    files.back().push_back(std::move(tensor));
  }
  return files;
}

/// The names of a model's files, for another group.
std::string named_for(const std::string& group, std::string_view file) {
  constexpr std::string_view kModel = "model";
  return group + std::string(file.substr(kModel.size()));
}

}  // namespace

std::vector<GroupFile> files_of_group(const std::string& group, std::vector<StoredTensor> tensors,
                                      std::uint64_t max_file_bytes, const SafetensorsLayout::Metadata& metadata,
                                      std::uint64_t alignment) {
  auto parts = divide(std::move(tensors), max_file_bytes);
  std::vector<GroupFile> files;
  SafetensorsIndex index;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name = named_for(group, shard_name(i, parts.size()));
    auto layout = SafetensorsLayout::plan(std::move(parts[i]), metadata, alignment);
    for (const StoredTensor& tensor : layout.tensors()) index.file_of.emplace(tensor.name, name);
    index.num_bytes += layout.num_data_bytes();
    files.push_back({name, layout.num_file_bytes(), layout.header(), std::move(layout)});
  }
  if (files.size() == 1) return files;
  std::string text = index.to_json();
  files.push_back({named_for(group, kIndexFileName), text.size(), std::move(text), std::nullopt});
  return files;
}

}  // namespace tessera::checkpoints
