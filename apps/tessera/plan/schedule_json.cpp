#include <nlohmann/json.hpp>

#include "tessera/plan/schedule_files.h"

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const PipelineOperation& operation, const OperationTime& time) {
  Json json = {{"kind", to_string(operation.kind)}, {"micro_batch", operation.micro_batch}, {"stage", operation.stage}};
  if (!operation.is_computation()) json["peer"] = operation.peer;
  json["start"] = time.start;
  json["end"] = time.end;
  return json;
}

Json json_of_rank(const PlannedSchedule& planned, std::size_t rank) {
  const RankTimes& times = planned.times.ranks[rank];
  const auto& operations = planned.schedule.operations[rank];
  Json list = Json::array();
  for (std::size_t i = 0; i < operations.size(); ++i) list.push_back(json_of(operations[i], times.operations[i]));
  return {{"start", times.start},
          {"end", times.end},
          {"work", times.work},
          {"idle", times.idle()},
          {"peak_activations_until_input", planned.peaks[rank].until_input},
          {"peak_activations_until_weight", planned.peaks[rank].until_weight},
          {"operations", list}};
}

}  // namespace

std::string to_json(const PlannedSchedule& planned) {
  Json json = {{"format", "tessera schedule 1"},
               {"kind", to_string(planned.kind)},
               {"micro_batches", planned.shape.num_micro_batches},
               {"chunks", planned.num_chunks()},
               {"rank_of_stage", planned.schedule.rank_of_stage},
               {"makespan", planned.times.makespan},
               {"idle_share", planned.times.idle_share()},
               {"idle_formula", nullptr},
               {"ranks", Json::array()}};
  if (planned.formula) json["idle_formula"] = {{"text", planned.formula->text}, {"value", planned.formula->value}};
  for (std::size_t rank = 0; rank < planned.peaks.size(); ++rank) json["ranks"].push_back(json_of_rank(planned, rank));
  return json.dump(1) + "\n";
}

}  // namespace tessera::app
