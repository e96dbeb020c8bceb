#include <tessera/checkpoint/safetensors_bytes.h>
#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/error.h>
#include <tessera/core/mapped_file.h>

#include "checkpoint/safetensors_header.h"

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

}  // namespace

SafetensorsBytes::SafetensorsBytes(const std::filesystem::path& path)
    : path_(path),
      file_(std::make_shared<MappedFile>(path)),
      layout_(std::make_shared<SafetensorsLayout>(SafetensorsLayout::parse(file_->bytes(), path.string()))) {}

std::span<const std::byte> SafetensorsBytes::bytes(const std::string& name) const {
  const StoredTensor& stored = layout_->at(name, path_.string());
  return file_->bytes().subspan(layout_->data_start() + stored.begin, stored.num_bytes());
}

SafetensorsFolderBytes::SafetensorsFolderBytes(const fs::path& path) : path_(path) {
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

void SafetensorsFolderBytes::open_single(const fs::path& file) {
  files_.emplace_back(file);
  for (const StoredTensor& tensor : files_.back().layout().tensors()) place_of_.emplace(tensor.name, 0);
}

void SafetensorsFolderBytes::open_indexed(const fs::path& index_path) {
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

std::vector<std::string> SafetensorsFolderBytes::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : place_of_) names.push_back(name);
  return names;
}

const SafetensorsBytes& SafetensorsFolderBytes::file_with(const std::string& name) const {
  const auto place = place_of_.find(name);
  if (place != place_of_.end()) return files_[place->second];
  throw ConfigError(path_.string() + " has no tensor " + shown(name) + "; it holds " +
                    std::to_string(place_of_.size()) + " tensors");
}

const StoredTensor& SafetensorsFolderBytes::at(const std::string& name) const {
  return file_with(name).layout().at(name, path_.string());
}

}  // namespace tessera
