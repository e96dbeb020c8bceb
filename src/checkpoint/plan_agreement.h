#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/comm/communicator.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/save_plan.h"

namespace tessera::checkpoints {

/// What the ranks know of one another before a save.
struct AgreedSave {
  std::shared_ptr<const SavePlan> plan;
  std::map<std::string, ManifestValue> values;  ///< of all ranks
};

/// Makes the plan of a save, and keeps it for the next one: as long as every rank holds the same slices as before, the
/// ranks tell one another no more than that.
class PlanAgreement {
 public:
  /// Collective: over `comm`. Throws ConfigError, on every rank, when their slices or values do not fit together.
  AgreedSave agree(const Communicator& comm, const RankState& state, std::uint64_t max_file_bytes);

 private:
  std::vector<std::string> fingerprints_;  // of the slices of each rank
  std::shared_ptr<const SavePlan> plan_;
};

}  // namespace tessera::checkpoints
