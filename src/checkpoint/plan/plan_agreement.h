#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/comm/communicator.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/plan/save_plan.h"
#include "checkpoint/plan/write_extent.h"

namespace tessera::checkpoints {

/// What the ranks have agreed on before a save.
struct AgreedSave {
  std::shared_ptr<const SavePlan> plan;
  std::shared_ptr<const CopyLayout> copy_layout;  ///< of what this rank writes
  std::map<std::string, ManifestValue> values;    ///< of all ranks
};

/// Makes the plan of a save and keeps it for the next one. As long as every rank holds the same slices as before, the
/// ranks exchange only fingerprints of them, and values.
class PlanAgreement {
 public:
  PlanAgreement(Communicator comm, std::uint64_t max_file_bytes);

  /// Collective. Throws ConfigError, on every rank, when their slices or values do not fit together.
  AgreedSave agree(const RankState& state);

 private:
  void make_plan(const std::string& slices);

  Communicator comm_;
  std::uint64_t max_file_bytes_;
  std::vector<std::string> fingerprints_;  // of the slices of each rank
  std::shared_ptr<const SavePlan> plan_;
  std::shared_ptr<const CopyLayout> copy_layout_;
};

}  // namespace tessera::checkpoints
