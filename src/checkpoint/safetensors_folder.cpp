#include <tessera/checkpoint/safetensors_folder.h>
#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>
#include <tessera/core/mapped_file.h>

#include "checkpoint/group_files.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/whole_tensors.h"

namespace tessera {
namespace {

using checkpoints::shown;
namespace fs = std::filesystem;

SafetensorsIndex read_index(const fs::path& path) {
  const MappedFile file(path);
  if (file.bytes().size() > SafetensorsLayout::kMaxHeaderBytes) {
    throw StorageError(path.string() + ": expected an index of at most " +
                       std::to_string(SafetensorsLayout::kMaxHeaderBytes) + " bytes, found " +
                       std::to_string(file.bytes().size()));
  }
  return SafetensorsIndex::parse(file.text(), path.string());
}

void refuse_other_form(const fs::path& folder, bool several) {
  const fs::path other = folder / (several ? kSingleFileName : kIndexFileName);
  if (!fs::exists(other)) return;
  throw ConfigError(folder.string() + " holds " + other.filename().string() + " already, and this save would write " +
                    (several ? "several files with an index" : "one file") +
                    " beside it; readers could not tell which is meant. Remove it, or save into another folder");
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const fs::path& path) : path_(path) {
  if (!fs::is_directory(path)) {
    if (path.extension() == ".json") {
      open_indexed(path);
    } else {
      open_single(path);
    }
    return;
  }
  const fs::path single = path / kSingleFileName;
  const fs::path index = path / kIndexFileName;
  const bool has_single = fs::exists(single);
  const bool has_index = fs::exists(index);
  if (has_single == has_index) {
    throw ConfigError(path.string() + " holds " + (has_single ? "both " : "neither ") + std::string(kSingleFileName) +
                      (has_single ? " and " : " nor ") + std::string(kIndexFileName) +
                      (has_single ? "; name the one that is meant" : "; expected one of them"));
  }
  if (has_index) {
    open_indexed(index);
  } else {
    open_single(single);
  }
}

void SafetensorsFolder::open_single(const fs::path& file) {
  files_.emplace_back(file);
  for (const StoredTensor& tensor : files_.back().layout().tensors()) place_of_.emplace(tensor.name, 0);
}

void SafetensorsFolder::open_indexed(const fs::path& index_path) {
  const SafetensorsIndex index = read_index(index_path);
  for (const std::string& name : index.files()) {
    files_.emplace_back(index_path.parent_path() / name);
    for (const StoredTensor& tensor : files_.back().layout().tensors()) {
      const auto listed = index.file_of.find(tensor.name);
      if (listed == index.file_of.end() || listed->second != name) {
        throw StorageError(files_.back().path().string() + " holds tensor " + shown(tensor.name) + ", which " +
                           index_path.filename().string() +
                           (listed == index.file_of.end() ? " does not list" : " lists in " + shown(listed->second)));
      }
      place_of_.emplace(tensor.name, files_.size() - 1);
    }
  }
  for (const auto& [name, file] : index.file_of) {
    if (place_of_.contains(name)) continue;
    throw StorageError(index_path.string() + " lists tensor " + shown(name) + " in " + shown(file) +
                       ", which does not hold it");
  }
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : place_of_) names.push_back(name);
  return names;
}

const SafetensorsFile& SafetensorsFolder::file_with(const std::string& name) const {
  const auto place = place_of_.find(name);
  if (place != place_of_.end()) return files_[place->second];
  throw ConfigError(path_.string() + " has no tensor " + shown(name) + "; it holds " +
                    std::to_string(place_of_.size()) + " tensors");
}

const StoredTensor& SafetensorsFolder::at(const std::string& name) const {
  return file_with(name).layout().at(name, path_.string());
}

at::Tensor SafetensorsFolder::read(const std::string& name) const { return file_with(name).read(name); }

at::Tensor SafetensorsFolder::read_slice(const std::string& name, const TensorSlice& slice) const {
  return file_with(name).read_slice(name, slice);
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
