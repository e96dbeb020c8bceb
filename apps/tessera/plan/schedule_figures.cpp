// What a schedule costs, in tables.
#include <algorithm>

#include "tessera/plan/schedule_text.h"

namespace tessera::app {
namespace {

using Row = std::vector<std::string>;

/// Columns as wide as their widest text, two spaces apart.
std::string table_text(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

/// In activations of all layers of a rank, of which a stage has its part.
std::string activations_text(int num_stage_activations, const PlannedSchedule& planned) {
  return number_text(static_cast<double>(num_stage_activations) / planned.num_chunks());
}

std::string formula_text(const PlannedSchedule& planned) {
  return planned.formula ? planned.formula->text + ": " + share_text(planned.formula->value) : "none for these numbers";
}

constexpr const char* kActivations =
    "activations: the most that a rank holds at once, in micro-batches through all of its layers";

PeakActivations most_activations(const PlannedSchedule& planned) {
  PeakActivations most;
  for (const PeakActivations& peak : planned.peaks) {
    most.until_input = std::max(most.until_input, peak.until_input);
    most.until_weight = std::max(most.until_weight, peak.until_weight);
  }
  return most;
}

}  // namespace

std::string figures(const PlannedSchedule& planned) {
  const bool is_halved = has_halved_backwards(planned);
  std::vector<Row> rows = {{"rank", "begins", "ends", "works", "idles", "share", "activations"}};
  if (is_halved) rows[0].emplace_back("until inputs");
  for (std::size_t rank = 0; rank < planned.peaks.size(); ++rank) {
    const RankTimes& times = planned.times.ranks[rank];
    const double share = times.work > 0 ? times.idle() / times.work : 0;
    rows.push_back({std::to_string(rank), number_text(times.start), number_text(times.end), number_text(times.work),
                    number_text(times.idle()), share_text(share),
                    activations_text(planned.peaks[rank].until_weight, planned)});
    if (is_halved) rows.back().push_back(activations_text(planned.peaks[rank].until_input, planned));
  }
  return table_text(rows) + kActivations +
         (is_halved ? ";\nuntil inputs: without those that only the weights' gradients still need\n" : "\n") +
         "makespan " + number_text(planned.times.makespan) + "; idle " + share_text(planned.times.idle_share()) +
         " at most; by the formula " + formula_text(planned) + "\n";
}

std::string operation_list(const PlannedSchedule& planned) {
  std::string text;
  for (std::size_t rank = 0; rank < planned.schedule.operations.size(); ++rank) {
    const auto& operations = planned.schedule.operations[rank];
    std::vector<Row> rows = {{"rank " + std::to_string(rank), "from", "to", "operation"}};
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const OperationTime& time = planned.times.ranks[rank].operations[i];
      rows.push_back({std::to_string(i), number_text(time.start), number_text(time.end), to_string(operations[i])});
    }
    text += "\n" + table_text(rows);
  }
  return text;
}

std::string comparison(const std::vector<PlannedSchedule>& planned) {
  std::vector<Row> rows = {{"kind", "chunks", "makespan", "idle", "by the formula", "activations"}};
  for (const PlannedSchedule& one : planned) {
    rows.push_back({std::string(to_string(one.kind)), std::to_string(one.num_chunks()), number_text(one.times.makespan),
                    share_text(one.times.idle_share()), formula_text(one),
                    activations_text(most_activations(one).until_weight, one)});
  }
  return table_text(rows) + "idle: the largest idle time of a rank within its span, relative to its work\n" +
         kActivations + "\n";
}

}  // namespace tessera::app
