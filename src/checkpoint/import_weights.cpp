#include <tessera/checkpoint/interchange.h>
#include <tessera/checkpoint/step_folders.h>
#include <tessera/core/error.h>

#include <span>

#include "checkpoint/file_system.h"
#include "checkpoint/prefix_changes.h"
#include "checkpoint/save_job.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/step_draft.h"

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

/// The tensors as one rank would hold them; `bytes` gets those of each.
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

/// What each planned slice is made from.
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
