#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/core/byte_count.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/plan/save_plan.h"
#include "checkpoint/save/step_draft.h"

namespace tessera::checkpoints {

/// What a rank reports to rank 0 when its bytes are on the disk: the checksums of what it wrote, in the order of its
/// plan.
struct SavePart {
  std::vector<std::vector<std::uint64_t>> checksums;

  std::string to_text() const;
  /// Throws StorageError for a text that to_text() does not write; `origin` names it.
  static SavePart parse(std::string_view text, const std::string& origin);
};

/// What all ranks agree on before a step is written.
struct SaveOrder {
  std::shared_ptr<const SavePlan> plan;
  std::int64_t step = 0;
  int rank = 0;
  std::map<std::string, ManifestValue> values;  ///< rank 0: those of all ranks
  std::chrono::milliseconds timeout{0};         ///< how long rank 0 waits for the others
  std::shared_ptr<ByteCount> count;             ///< of what this rank has written
};

/// One rank's part of saving a step: writes its slices, brings them to the disk and notifies rank 0, which makes the
/// step appear. `sources` are the bytes of the rank's planned slices, in their order. May run on a thread of its own:
/// ranks communicate only through files.
/// Returns why a step of that number, which this one replaced, could not be removed; empty when it was.
/// Blocks: for the disk and, on rank 0, for the other ranks. Throws StorageError; then the step does not appear.
std::string save_slices(StepDraft& draft, const SaveOrder& order,
                        const std::vector<std::span<const std::byte>>& sources);

}  // namespace tessera::checkpoints
