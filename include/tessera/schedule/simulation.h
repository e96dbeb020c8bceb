#pragma once

#include <tessera/core/options.h>
#include <tessera/schedule/pipeline_schedule.h>

#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// How long operations take, in any unit. A whole Backward takes `backward_input` and `backward_weight` together.
struct ScheduleCosts {
  /// One number for all stages, or one for each stage.
  TESSERA_ARG(std::vector<double>, forward) = { 1.0 };
  TESSERA_ARG(std::vector<double>, backward_input) = { 1.0 };
  TESSERA_ARG(std::vector<double>, backward_weight) = { 1.0 };
  /// From a send to the moment when the message is there. Messages do not slow each other down, nor the sender.
  TESSERA_ARG(double, transfer) = 0.0;

 public:
  /// Whether all three take the same time on all stages, and messages no time.
  bool are_equal() const;
};

/// What is wrong with the costs of a pipeline of `num_stages` stages, each fault with its remedy; empty if nothing is.
std::vector<std::string> cost_faults(const ScheduleCosts& costs, int num_stages);

/// When an operation begins and ends. A receive lasts while the rank waits for the message; a send takes no time.
struct OperationTime {
  double start = 0;
  double end = 0;
};

struct RankTimes {
  std::vector<OperationTime> operations;  ///< as in the rank's list
  double start = 0;                       ///< of the first computation
  double end = 0;                         ///< of the last computation
  double work = 0;                        ///< what all computations take

  /// Within the rank's own span, from its first computation to its last.
  double idle() const { return end - start - work; }
};

struct ScheduleSimulation {
  std::vector<RankTimes> ranks;
  double makespan = 0;  ///< from 0, when the first rank begins, to the end of the last one

  /// The largest idle time of a rank within its span, relative to its work. This is what the published formulas give.
  double idle_share() const;
};

/// Executes the lists on a clock. Throws ConfigError with all faults of the schedule (see check_schedule()) and of the
/// costs.
ScheduleSimulation simulate(const PipelineSchedule& schedule, const ScheduleCosts& costs = {});

/// A formula for `ScheduleSimulation::idle_share()`.
struct IdleFormula {
  std::string text;  ///< "(p - 1) / m": p ranks, m micro-batches, v chunks a rank
  double value = 0;
};

/// The published formula for schedules of `make_pipeline_schedule`, if one holds. Each stage must cost the same; the
/// formulas of the zero-bubble schedules are for equal costs of forward and both backwards. The interleaved one needs
/// p to divide m, zb-h1 m of p or more, zb-v m of 2p - 1 or more.
std::optional<IdleFormula> idle_formula(PipelineScheduleKind kind, const PipelineShape& shape,
                                        const ScheduleCosts& costs = {});

}  // namespace tessera
