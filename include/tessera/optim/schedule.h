#pragma once

#include <tessera/core/options.h>

#include <torch/arg.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

/// What the learning rate does after the warm-up:
/// - kConstant: stays.
/// - kLinear: falls on a line, from 1 to `min_factor` at `total_steps`.
/// - kCosine: falls on half a wave, from 1 to `min_factor` at `total_steps`.
/// - kWsd: warm-up, stable, decay: stays, then falls on a line during the last `decay_steps`. A run may be prolonged
///   or branched from anywhere in the stable part.
enum class ScheduleKind { kConstant, kLinear, kCosine, kWsd };

std::string_view to_string(ScheduleKind kind);

struct ScheduleOptions {
  TORCH_ARG(ScheduleKind, kind) = ScheduleKind::kConstant;
  /// The first updates, during which the learning rate rises on a line: update i takes (i + 1) / warmup_steps of it.
  TORCH_ARG(std::int64_t, warmup_steps) = 0;
  /// All updates of the run, the warm-up's included. From then on the factor is `min_factor`. Needed unless constant.
  TORCH_ARG(std::int64_t, total_steps) = 0;
  /// Where the learning rate ends, as a part of the full one. Not for constant.
  TORCH_ARG(double, min_factor) = 0;
  /// Only for wsd: how many of the last updates the learning rate falls in.
  TORCH_ARG(std::int64_t, decay_steps) = 0;

 public:
  static const FieldList<ScheduleOptions>& fields();
};

/// The fraction of the full learning rate that update `step`, counted from 0, takes. A pure function: a run that
/// resumes at a step needs nothing but its number. Throws ConfigError with every fault of the options (numbers out of
/// range, fields that the kind does not use), and for a negative step.
double lr_factor(const ScheduleOptions& options, std::int64_t step);

/// Sets the learning rate of each parameter group of an optimizer, in proportion to the group's rate at the beginning.
///
///   LrSchedule schedule(optimizer, options);   // sets the rate of update 0
///   for (...) { ...; optimizer.step(); schedule.advance(); }
///
/// To resume: make the schedule as at the first start, load the optimizer, then `set_step(number of updates done)`.
/// Keep that order: a loaded optimizer has the learning rates of its last update, not the full ones.
/// Requires: `optimizer` outlives it and gets no further parameter groups. Any LibTorch optimizer.
class LrSchedule {
 public:
  LrSchedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options);

  /// Call it after each update.
  void advance() { set_step(step_ + 1); }
  /// Sets the rates of update `step`, whatever the step was before.
  void set_step(std::int64_t step);

  std::int64_t step() const { return step_; }
  double factor() const { return lr_factor(options_, step_); }
  /// The full learning rate of each group.
  const std::vector<double>& full_rates() const { return full_rates_; }

 private:
  torch::optim::Optimizer& optimizer_;
  ScheduleOptions options_;
  std::vector<double> full_rates_;
  std::int64_t step_ = 0;
};

}  // namespace tessera
