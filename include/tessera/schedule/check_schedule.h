#pragma once

#include <tessera/schedule/pipeline_schedule.h>

#include <string>
#include <vector>

namespace tessera {

/// The most activations that a rank holds at once. One is what the forward of one micro-batch through one stage leaves;
/// with several chunks a rank, a stage is so much smaller.
struct PeakActivations {
  /// Counted until the gradient of the input is computed (kBackwardInput or kBackward). What a forward left for
  /// kBackwardInput alone is free from then on.
  int until_input = 0;
  /// Counted until the gradients of the weights are computed (kBackwardWeight or kBackward). Between the two, the part
  /// that the weights' gradients need is still there: each layer's input and the gradient of its output.
  int until_weight = 0;

  bool operator==(const PeakActivations&) const = default;
};

struct ScheduleCheck {
  /// Each names the rank, the position in its list from 0, and the operation. Empty: the schedule works.
  std::vector<std::string> faults;
  /// Of each rank; empty if there are faults.
  std::vector<PeakActivations> peaks;
};

/// Proves that a schedule works, or says why it does not. It does if
/// - each rank does for every micro-batch and each of its stages one Forward and either one Backward or one
///   BackwardInput and, later, one BackwardWeight; and nothing else;
/// - each operation comes after those of the same rank that it needs;
/// - each send has one receive, on the rank that it goes to, and each receive one send;
/// - the ranks come to the end of their lists: no rank waits for a message that is sent only after a message for which
///   the sender waits itself.
ScheduleCheck check_schedule(const PipelineSchedule& schedule);

}  // namespace tessera
