#include <tessera/core/error.h>
#include <tessera/schedule/check_schedule.h>
#include <tessera/schedule/simulation.h>

#include <algorithm>
#include <functional>

#include "schedule/execution.h"

namespace tessera {
namespace {

void add_cost_faults(const std::string& name, const std::vector<double>& costs, int num_stages,
                     std::vector<std::string>& faults) {
  if (costs.size() != 1 && costs.size() != static_cast<std::size_t>(num_stages)) {
    faults.push_back(std::to_string(costs.size()) + " costs of " + name + " for " + std::to_string(num_stages) +
                     " stages: give one for all, or one for each");
  }
  // Sums of more would lose the digits of less.
  const auto wrong = std::find_if_not(costs.begin(), costs.end(), [](double cost) { return cost >= 0 && cost <= 1e9; });
  if (wrong != costs.end()) faults.push_back(std::to_string(*wrong) + " for " + name + ": use 0 to 1e9");
}

RankTimes rank_times(const std::vector<PipelineOperation>& operations, std::vector<OperationTime> times) {
  RankTimes result;
  bool has_begun = false;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (!operations[i].is_computation()) continue;
    if (!has_begun) result.start = times[i].start;
    has_begun = true;
    result.end = times[i].end;
    result.work += times[i].end - times[i].start;
  }
  result.operations = std::move(times);
  return result;
}

bool same_on_all_stages(const std::vector<double>& costs) {
  return std::adjacent_find(costs.begin(), costs.end(), std::not_equal_to<>()) == costs.end();
}

}  // namespace

bool ScheduleCosts::are_equal() const {
  if (transfer_ != 0) return false;
  for (const auto* costs : {&forward_, &backward_input_, &backward_weight_}) {
    if (costs->empty() || !same_on_all_stages(*costs) || costs->front() != forward_.front()) return false;
  }
  return true;
}

std::vector<std::string> cost_faults(const ScheduleCosts& costs, int num_stages) {
  std::vector<std::string> faults;
  add_cost_faults("the forward", costs.forward(), num_stages, faults);
  add_cost_faults("the backward of inputs", costs.backward_input(), num_stages, faults);
  add_cost_faults("the backward of weights", costs.backward_weight(), num_stages, faults);
  add_cost_faults("a transfer", {costs.transfer()}, num_stages, faults);
  return faults;
}

double ScheduleSimulation::idle_share() const {
  double share = 0;
  for (const RankTimes& rank : ranks) {
    if (rank.work > 0) share = std::max(share, rank.idle() / rank.work);
  }
  return share;
}

ScheduleSimulation simulate(const PipelineSchedule& schedule, const ScheduleCosts& costs) {
  std::vector<std::string> faults = check_schedule(schedule).faults;
  for (const std::string& fault : cost_faults(costs, schedule.num_stages())) faults.push_back(fault);
  if (!faults.empty()) {
    std::string text = "the schedule cannot be simulated:";
    for (const std::string& fault : faults) text += "\n  - " + fault;
    throw ConfigError(text);
  }
  schedule::Execution execution = schedule::execute(schedule, costs);
  ScheduleSimulation result;
  for (std::size_t rank = 0; rank < schedule.operations.size(); ++rank) {
    result.ranks.push_back(rank_times(schedule.operations[rank], std::move(execution.times[rank])));
    result.makespan = std::max(result.makespan, result.ranks.back().end);
  }
  return result;
}

std::optional<IdleFormula> idle_formula(PipelineScheduleKind kind, const PipelineShape& shape,
                                        const ScheduleCosts& costs) {
  const double p = shape.num_ranks;
  const double m = shape.num_micro_batches;
  const double v = shape.num_chunks.value_or(default_num_chunks(kind));
  const bool even = costs.transfer() == 0 && same_on_all_stages(costs.forward()) &&
                    same_on_all_stages(costs.backward_input()) && same_on_all_stages(costs.backward_weight());
  if (!even) return std::nullopt;
  switch (kind) {
    case PipelineScheduleKind::kSequential:
    case PipelineScheduleKind::kRoundRobin:
      return IdleFormula{"p - 1", p - 1};
    case PipelineScheduleKind::kGPipe:
    case PipelineScheduleKind::kOneForwardOneBackward:
      return IdleFormula{"(p - 1) / m", (p - 1) / m};
    case PipelineScheduleKind::kInterleaved:
      // One chunk a rank is 1f1b, which needs no groups.
      if (v > 1 && shape.num_micro_batches % shape.num_ranks != 0) return std::nullopt;
      return IdleFormula{"(p - 1) / (v m)", (p - 1) / (v * m)};
    case PipelineScheduleKind::kZeroBubbleH1:
      if (!costs.are_equal() || m < p) return std::nullopt;
      return IdleFormula{"(p - 1) / (3 m)", (p - 1) / (3 * m)};
    case PipelineScheduleKind::kZeroBubbleV:
      if (!costs.are_equal() || m < 2 * p - 1) return std::nullopt;
      return IdleFormula{"0", 0};
  }
  return std::nullopt;
}

}  // namespace tessera
