#include <tessera/core/error.h>
#include <tessera/flight/rank_set.h>
#include <tessera/flight/snapshot.h>

#include <nlohmann/json.hpp>

#include "flight/json_fields.h"

namespace tessera::flight {
namespace {

nlohmann::json to_object(const CallRecord& call) {
  return {{"sequence", call.sequence},
          {"group", call.group},
          {"operation", call.operation},
          {"collective", call.is_collective},
          {"dtype", call.dtype},
          {"shape", call.shape},
          {"file", call.file},
          {"line", call.line},
          {"state", static_cast<int>(call.state)},
          {"started_ns", call.started_ns},
          {"ended_ns", call.ended_ns}};
}

CallRecord call_from(const nlohmann::json& object) {
  CallRecord call;
  read_number(object, "sequence", call.sequence);
  object.at("group").get_to(call.group);
  object.at("operation").get_to(call.operation);
  object.at("collective").get_to(call.is_collective);
  object.at("dtype").get_to(call.dtype);
  call.shape = whole_numbers<std::int64_t>(object.at("shape"));
  object.at("file").get_to(call.file);
  read_number(object, "line", call.line);
  const int state = whole_number<int>(object.at("state"));
  if (state < 0 || state > 2) throw ConfigError("there is no state " + std::to_string(state) + " of a call");
  call.state = static_cast<CallState>(state);
  read_number(object, "started_ns", call.started_ns);
  read_number(object, "ended_ns", call.ended_ns);
  return call;
}

}  // namespace

nlohmann::json to_object(const Snapshot& snapshot, std::size_t num_calls) {
  nlohmann::json groups = nlohmann::json::array();
  for (const auto& group : snapshot.groups) {
    groups.push_back({{"name", group.name}, {"size", group.size}, {"ranks", ranks_text(group.ranks)}});
  }
  nlohmann::json calls = nlohmann::json::array();
  const std::size_t skipped = snapshot.calls.size() > num_calls ? snapshot.calls.size() - num_calls : 0;
  for (std::size_t i = skipped; i < snapshot.calls.size(); ++i) calls.push_back(to_object(snapshot.calls[i]));
  return {{"rank", snapshot.rank},    {"world_size", snapshot.world_size}, {"process", snapshot.process},
          {"host", snapshot.host},    {"verdict", snapshot.verdict},       {"groups", std::move(groups)},
          {"calls", std::move(calls)}};
}

Snapshot snapshot_from(const nlohmann::json& object) {
  Snapshot snapshot;
  read_number(object, "rank", snapshot.rank);
  read_number(object, "world_size", snapshot.world_size);
  read_number(object, "process", snapshot.process);
  object.at("host").get_to(snapshot.host);
  snapshot.verdict = object.value("verdict", "");  // reports of version 0.1 have none
  for (const auto& group : object.at("groups")) {
    snapshot.groups.push_back({group.at("name").get<std::string>(), whole_number<int>(group.at("size")),
                               parse_ranks(group.at("ranks").get<std::string>())});
  }
  for (const auto& call : object.at("calls")) snapshot.calls.push_back(call_from(call));
  return snapshot;
}

std::string to_json(const Snapshot& snapshot, std::size_t num_calls) {
  // Names of files need not be UTF-8.
  return to_object(snapshot, num_calls).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Snapshot snapshot_from_json(std::string_view text) {
  try {
    return snapshot_from(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(std::string("this is not a snapshot of a rank: ") + error.what());
  }
}

}  // namespace tessera::flight
