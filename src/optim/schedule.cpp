#include <tessera/core/error.h>
#include <tessera/optim/schedule.h>

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace tessera {
namespace {

/// From 1 to 0 while `step` goes from `begin` to `end`.
double remaining(std::int64_t step, std::int64_t begin, std::int64_t end) {
  return static_cast<double>(end - step) / static_cast<double>(end - begin);
}

double shape(const ScheduleOptions& options, std::int64_t step) {
  const std::int64_t begin = options.warmup_steps();
  const std::int64_t end = options.total_steps();
  if (options.kind() == ScheduleKind::kConstant) return 1;
  if (step >= end) return 0;
  switch (options.kind()) {
    case ScheduleKind::kConstant:
      return 1;
    case ScheduleKind::kLinear:
      return remaining(step, begin, end);
    case ScheduleKind::kCosine:
      return 0.5 * (1 - std::cos(std::numbers::pi * remaining(step, begin, end)));
    case ScheduleKind::kWsd:
      return std::min(1.0, remaining(step, end - options.decay_steps(), end));
  }
  throw InternalError("a schedule without a shape");
}

/// A field that is set but not used by the kind is a fault too, so that no setting is silently ignored.
void check(const ScheduleOptions& options) {
  ScheduleOptions::fields().check(options);
  std::string faults;
  const auto require = [&faults](bool holds, const std::string& expected, const auto& found) {
    if (!holds) faults += (faults.empty() ? "" : "\n") + ("schedule: " + expected) + ", found " + std::to_string(found);
  };
  const std::string kind(to_string(options.kind()));
  const bool constant = options.kind() == ScheduleKind::kConstant;
  const bool wsd = options.kind() == ScheduleKind::kWsd;
  const std::int64_t total = options.total_steps();
  const std::int64_t decay = options.decay_steps();
  require(options.warmup_steps() >= 0, "warmup_steps must not be negative", options.warmup_steps());
  require(total >= 0, "total_steps must not be negative", total);
  require(constant || total != 0, "total_steps of " + kind + " must be given", total);
  require(options.min_factor() >= 0 && options.min_factor() <= 1, "min_factor must be from 0 to 1",
          options.min_factor());
  require(!constant || options.min_factor() == 0,
          "min_factor means nothing to constant; leave it out or take another kind", options.min_factor());
  require(wsd || decay == 0, "decay_steps means nothing to " + kind + "; leave it out or take wsd", decay);
  require(!wsd || decay > 0, "decay_steps of wsd must be above 0", decay);
  require(constant || total < 1 || decay < 0 || options.warmup_steps() <= total - decay,
          "the warm-up must end before the decay begins, at total_steps - decay_steps", options.warmup_steps());
  if (!faults.empty()) throw ConfigError(faults);
}

}  // namespace

std::string_view to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kConstant:
      return "constant";
    case ScheduleKind::kLinear:
      return "linear";
    case ScheduleKind::kCosine:
      return "cosine";
    case ScheduleKind::kWsd:
      return "wsd";
  }
  throw InternalError("a schedule without a name");
}

const FieldList<ScheduleOptions>& ScheduleOptions::fields() {
  static const FieldList<ScheduleOptions> list =
      FieldList<ScheduleOptions>("schedule")
          .add_enum("kind", &ScheduleOptions::kind_,
                    {{"constant", ScheduleKind::kConstant},
                     {"linear", ScheduleKind::kLinear},
                     {"cosine", ScheduleKind::kCosine},
                     {"wsd", ScheduleKind::kWsd}},
                    "What the learning rate does after the warm-up; wsd: it stays, and falls at the end.")
          .add("warmup_steps", &ScheduleOptions::warmup_steps_,
               "The first updates, during which the learning rate rises on a line.")
          .add("total_steps", &ScheduleOptions::total_steps_,
               "All updates of the run, the warm-up's included; needed unless constant.")
          .add("min_factor", &ScheduleOptions::min_factor_,
               "Where the learning rate ends, as a part of the full one; not for constant.")
          .add("decay_steps", &ScheduleOptions::decay_steps_,
               "Only for wsd: how many of the last updates the learning rate falls in.");
  return list;
}

double lr_factor(const ScheduleOptions& options, std::int64_t step) {
  check(options);
  if (step < 0) throw ConfigError("schedule: expected a step from 0 on, found " + std::to_string(step));
  if (step < options.warmup_steps()) {
    return static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps());
  }
  return options.min_factor() + (1 - options.min_factor()) * shape(options, step);
}

LrSchedule::LrSchedule(torch::optim::Optimizer& optimizer, const ScheduleOptions& options)
    : optimizer_(optimizer), options_(options) {
  for (const auto& group : optimizer.param_groups()) full_rates_.push_back(group.options().get_lr());
  set_step(0);
}

void LrSchedule::set_step(std::int64_t step) {
  auto& groups = optimizer_.param_groups();
  if (groups.size() != full_rates_.size()) {
    throw ConfigError("schedule: the optimizer had " + std::to_string(full_rates_.size()) +
                      " parameter groups, found " + std::to_string(groups.size()) +
                      "; make the schedule after all are added");
  }
  const double factor = lr_factor(options_, step);
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(full_rates_[i] * factor);
  step_ = step;
}

}  // namespace tessera
