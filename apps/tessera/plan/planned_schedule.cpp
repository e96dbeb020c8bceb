#include "tessera/plan/planned_schedule.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace tessera::app {
namespace {

using Kind = PipelineOperation::Kind;

char drawn_letter(Kind kind) { return kind == Kind::kForward ? 'F' : kind == Kind::kBackwardWeight ? 'W' : 'B'; }

std::string count_text(int count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::vector<int> chunks_of_stages(const PipelineSchedule& schedule) {
  std::vector<int> chunks;
  std::vector<int> num_before(schedule.operations.size(), 0);
  for (const int rank : schedule.rank_of_stage) chunks.push_back(num_before[static_cast<std::size_t>(rank)]++);
  return chunks;
}

}  // namespace

PlannedSchedule plan_schedule(PipelineScheduleKind kind, const PipelineShape& shape, const ScheduleCosts& costs) {
  PlannedSchedule planned{kind, shape, costs, make_pipeline_schedule(kind, shape), {}, {}, {}, {}};
  planned.shape.num_chunks = shape.num_chunks.value_or(default_num_chunks(kind));
  planned.times = simulate(planned.schedule, costs);
  planned.peaks = check_schedule(planned.schedule).peaks;
  planned.chunk_of_stage = chunks_of_stages(planned.schedule);
  planned.formula = idle_formula(kind, planned.shape, costs);
  return planned;
}

std::vector<DrawnCell> drawn_cells(const PlannedSchedule& planned, std::size_t rank) {
  std::vector<DrawnCell> cells;
  const auto& operations = planned.schedule.operations[rank];
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const PipelineOperation& operation = operations[i];
    const OperationTime& time = planned.times.ranks[rank].operations[i];
    if (!operation.is_computation() || time.end <= time.start) continue;
    cells.push_back({drawn_letter(operation.kind), operation.kind == Kind::kBackward, operation.micro_batch,
                     planned.chunk_of_stage[static_cast<std::size_t>(operation.stage)], time.start, time.end});
  }
  return cells;
}

bool has_halved_backwards(const PlannedSchedule& planned) {
  const auto& operations = planned.schedule.operations[0];
  return std::any_of(operations.begin(), operations.end(),
                     [](const PipelineOperation& operation) { return operation.kind == Kind::kBackwardInput; });
}

std::string number_text(double number) {
  std::array<char, 48> digits{};
  std::snprintf(digits.data(), digits.size(), "%.3f", number);
  std::string text(digits.data());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string share_text(double share) {
  std::array<char, 48> digits{};
  // Sums of fractions may leave a trace below 0.
  std::snprintf(digits.data(), digits.size(), "%.1f %%", std::max(100 * share, 0.0));
  return digits.data();
}

std::string title_of(const PlannedSchedule& planned) {
  std::string title = std::string(to_string(planned.kind)) + " on " + count_text(planned.shape.num_ranks, "rank") +
                      ": " + count_text(planned.shape.num_micro_batches, "micro-batch");
  if (planned.shape.num_micro_batches > 1) title.replace(title.size() - 1, 1, "es");
  if (planned.num_chunks() > 1) title += ", " + std::to_string(planned.num_chunks()) + " chunks a rank";
  return title;
}

}  // namespace tessera::app
