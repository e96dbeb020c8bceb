#pragma once

#include <tessera/schedule/check_schedule.h>
#include <tessera/schedule/simulation.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tessera::app {

/// A schedule, and what is known of it before anything runs.
struct PlannedSchedule {
  PipelineScheduleKind kind{};
  PipelineShape shape;  ///< with its chunks
  ScheduleCosts costs;
  PipelineSchedule schedule;
  ScheduleSimulation times;
  std::vector<PeakActivations> peaks;
  std::optional<IdleFormula> formula;
  std::vector<int> chunk_of_stage;  ///< which of its rank's stages each stage is, from 0

  int num_chunks() const { return *shape.num_chunks; }
};

/// Throws ConfigError with all faults.
PlannedSchedule plan_schedule(PipelineScheduleKind kind, const PipelineShape& shape, const ScheduleCosts& costs);

/// One computation of a rank, ready to be drawn.
struct DrawnCell {
  char letter = 'F';  ///< F, B or W
  bool is_whole_backward = false;
  int micro_batch = 0;
  int chunk = 0;
  double start = 0;
  double end = 0;
};

/// The computations of a rank that take time, in their order.
std::vector<DrawnCell> drawn_cells(const PlannedSchedule& planned, std::size_t rank);

/// Whether the schedule computes the gradients of inputs and weights apart.
bool has_halved_backwards(const PlannedSchedule& planned);

/// "33", "25.5", "0.125": at most three digits after the point.
std::string number_text(double number);
/// "37.5 %"
std::string share_text(double share);
/// "1f1b on 4 ranks: 8 micro-batches", "interleaved on 4 ranks: 8 micro-batches, 2 chunks a rank"
std::string title_of(const PlannedSchedule& planned);

}  // namespace tessera::app
