#pragma once

#include <tessera/schedule/pipeline_schedule.h>
#include <tessera/schedule/simulation.h>

#include <vector>

namespace tessera::schedule {

struct Execution {
  /// Of each rank's operations, as far as it came.
  std::vector<std::vector<OperationTime>> times;
  /// The ranks that wait for a message that is not sent; each stands at the operation behind its last time.
  std::vector<int> stuck_ranks;
};

/// Executes the lists with the semantics of PipelineOperation. Requires: messages that match.
Execution execute(const PipelineSchedule& schedule, const ScheduleCosts& costs);

}  // namespace tessera::schedule
