#include <tessera/checkpoint/interchange.h>
#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <list>
#include <map>
#include <span>

#include "checkpoint/group_files.h"
#include "checkpoint/prefix_changes.h"
#include "checkpoint/save_plan.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

/// By the names that they get.
using WeightsByName = std::map<std::string, const ManifestTensor*>;

WeightsByName weights_of(const SavedStep& step, const PrefixChanges& prefixes) {
  checkpoints::PrefixChanger changer(prefixes);
  WeightsByName weights;
  for (const ManifestTensor& tensor : step.manifest().tensors) {
    if (tensor.group != checkpoints::kWeightsGroup) continue;
    const auto [place, added] = weights.emplace(changer.changed(tensor.name), &tensor);
    if (added) continue;
    throw ConfigError("tensors \"" + place->second->name + "\" and \"" + tensor.name + "\" would both be called \"" +
                      place->first + "\"");
  }
  if (weights.empty()) {
    throw ConfigError(step.folder().string() + " holds no weights: none of its tensors is of the group \"" +
                      checkpoints::kWeightsGroup + "\"");
  }
  changer.require_all_used(step.folder().string());
  return weights;
}

std::vector<checkpoints::GroupFile> planned_files(const WeightsByName& weights, std::uint64_t max_file_bytes) {
  std::vector<StoredTensor> stored;
  for (const auto& [name, tensor] : weights) stored.push_back({name, tensor->dtype, tensor->shape});
  return checkpoints::files_of_group(checkpoints::kWeightsGroup, std::move(stored), max_file_bytes,
                                     checkpoints::file_notes());
}

void make_folder_for_weights(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw StorageError("the folder " + folder.string() + " cannot be made: " + error.message());
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json")) continue;
    throw ConfigError(folder.string() + " holds " + name +
                      " already: readers could not tell old weights from new ones. Export into another folder");
  }
}

void copy_tensor(const SavedStep& step, const ManifestTensor& tensor, std::uint64_t offset, AtomicFile& file,
                 std::vector<std::byte>& buffer) {
  const std::int64_t num_elements = num_elements_of(tensor.shape);
  const std::int64_t element_bytes = dtype_bytes(tensor.dtype);
  const std::int64_t piece = kPieceBytes / element_bytes;
  for (std::int64_t first = 0; first < num_elements; first += piece) {
    const std::int64_t size = std::min(piece, num_elements - first);
    const auto bytes = std::span(buffer).first(static_cast<std::size_t>(size * element_bytes));
    step.read(tensor.group, tensor.name, Slice::stretch(tensor.shape, {first, size}), bytes);
    file.write_at(offset, bytes);
    offset += bytes.size();
  }
}

}  // namespace

InterchangeReport export_weights(const SavedStep& step, const fs::path& folder, const InterchangeOptions& options) {
  const WeightsByName weights = weights_of(step, options.prefixes);
  const auto planned = planned_files(weights, options.max_file_bytes);
  make_folder_for_weights(folder);

  InterchangeReport report{weights.size(), 0, {}};
  for (const checkpoints::GroupFile& file : planned) {
    if (file.layout) report.num_bytes += file.layout->num_data_bytes();
  }
  step.announce_reads(report.num_bytes);
  std::vector<std::byte> buffer(static_cast<std::size_t>(kPieceBytes));
  std::list<AtomicFile> files;
  for (const checkpoints::GroupFile& made : planned) {
    AtomicFile& file = files.emplace_back(folder / made.name);
    report.files.push_back(made.name);
    file.write_at(0, std::as_bytes(std::span(made.text)));
    if (!made.layout) continue;
    for (const StoredTensor& stored : made.layout->tensors()) {
      copy_tensor(step, *weights.at(stored.name), made.layout->data_start() + stored.begin, file, buffer);
    }
  }
  for (AtomicFile& file : files) file.sync();
  for (AtomicFile& file : files) file.publish();  // the index comes last: no reader finds it before its files
  sync_folder(folder);
  return report;
}

}  // namespace tessera
