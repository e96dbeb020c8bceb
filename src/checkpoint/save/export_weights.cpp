#include <tessera/checkpoint/interchange.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/safetensors_header.h"
#include "checkpoint/plan/save_plan.h"
#include "checkpoint/save/save_job.h"
#include "checkpoint/save/step_draft.h"

namespace tessera::checkpoints {

/// Changes prefixes of names, and records which changes were used.
class PrefixChanger {
 public:
  explicit PrefixChanger(const PrefixChanges& changes) : changes_(changes), used_(changes.size(), false) {}

  std::string changed(std::string_view name);
  /// Throws ConfigError naming a prefix that no name began with: it is mistyped. `where` says whose names they are.
  void require_all_used(const std::string& where) const;

 private:
  PrefixChanges changes_;
  std::vector<bool> used_;
};

}  // namespace tessera::checkpoints

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

/// By their new names.
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
    step.read(tensor.group, tensor.name, Slice::extent(tensor.shape, {first, size}), bytes);
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

namespace tessera::checkpoints {

std::string PrefixChanger::changed(std::string_view name) {
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    const auto& [old_start, new_start] = changes_[i];
    if (!name.starts_with(old_start)) continue;
    used_[i] = true;
    return new_start + std::string(name.substr(old_start.size()));
  }
  return std::string(name);
}

void PrefixChanger::require_all_used(const std::string& where) const {
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    if (used_[i]) continue;
    throw ConfigError("no tensor of " + where + " begins with " + shown(changes_[i].first) +
                      ", which was to be renamed; `tessera inspect checkpoint` lists the names of a step");
  }
}

}  // namespace tessera::checkpoints

namespace tessera {
namespace {

using namespace checkpoints;  // NOLINT: all of this file is about them

using Bytes = std::span<const std::byte>;

void refuse_step_that_exists(const std::filesystem::path& folder, std::int64_t step) {
  if (step < 0) throw ConfigError("step " + std::to_string(step) + ": expected 0 or more");
  const auto path = folder / step_folder_name(step);
  if (!FileSystem::disk().exists(path)) return;
  throw ConfigError(path.string() + " is there already; import under another number, or into another folder");
}

/// The tensors as one rank would hold them; `bytes` receives the bytes of each.
std::vector<SliceDescription> described(const SafetensorsFolderBytes& weights, const PrefixChanges& prefixes,
                                        std::vector<Bytes>& bytes) {
  PrefixChanger changer(prefixes);
  std::vector<SliceDescription> slices;
  for (const std::string& name : weights.names()) {
    const StoredTensor& stored = weights.at(name);
    slices.push_back({kWeightsGroup, changer.changed(name), stored.dtype, Slice::whole(stored.shape)});
    bytes.push_back(weights.bytes(name));
  }
  if (slices.empty()) throw ConfigError(weights.path().string() + " holds no tensor");
  changer.require_all_used(weights.path().string());
  return slices;
}

/// The bytes of each planned slice.
std::vector<Bytes> sources_of(const SavePlan& plan, const std::vector<Bytes>& held) {
  std::vector<Bytes> sources;
  for (const PlannedWrite& planned : plan.of_rank[0]) {
    const ManifestTensor& tensor = plan.manifest.tensors[planned.tensor];
    const std::int64_t element_bytes = dtype_bytes(tensor.dtype);
    const std::int64_t num_elements = tensor.slices[planned.slice].slice.num_elements();
    sources.push_back(held[planned.held].subspan(static_cast<std::size_t>(planned.first * element_bytes),
                                                 static_cast<std::size_t>(num_elements * element_bytes)));
  }
  return sources;
}

}  // namespace

InterchangeReport import_weights(const SafetensorsFolderBytes& weights, const std::filesystem::path& checkpoints,
                                 std::int64_t step, const InterchangeOptions& options,
                                 std::shared_ptr<ByteCount> count) {
  refuse_step_that_exists(checkpoints, step);
  std::vector<Bytes> held;
  const auto slices = described(weights, options.prefixes, held);
  const auto plan = std::make_shared<const SavePlan>(SavePlan::make({slices}, options.max_file_bytes));
  const std::vector<Bytes> sources = sources_of(*plan, held);
  if (!count) count = std::make_shared<ByteCount>();
  InterchangeReport report{slices.size(), 0, {}};
  for (const Bytes source : sources) report.num_bytes += source.size();
  count->total += report.num_bytes;

  std::vector<DraftFile> files;
  for (const PlannedFile& file : plan->files) {
    files.push_back({file.name, file.num_bytes, file.text});
    report.files.push_back(file.name);
  }
  StepDraft draft = StepDraft::create(FileSystem::disk(), checkpoints, step, files);
  try {
    save_slices(draft, {plan, step, 0, {}, std::chrono::seconds(10), count}, sources);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(draft.folder(), ignored);  // nobody else writes into it
    throw;
  }
  return report;
}

}  // namespace tessera
