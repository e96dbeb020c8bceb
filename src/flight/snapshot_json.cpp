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
  object.at("sequence").get_to(call.sequence);
  object.at("group").get_to(call.group);
  object.at("operation").get_to(call.operation);
  object.at("collective").get_to(call.is_collective);
  object.at("dtype").get_to(call.dtype);
  object.at("shape").get_to(call.shape);
  object.at("file").get_to(call.file);
  object.at("line").get_to(call.line);
  const int state = object.at("state").get<int>();
  if (state < 0 || state > 2) throw ConfigError("there is no state " + std::to_string(state) + " of a call");
  call.state = static_cast<CallState>(state);
  object.at("started_ns").get_to(call.started_ns);
  object.at("ended_ns").get_to(call.ended_ns);
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
  object.at("rank").get_to(snapshot.rank);
  object.at("world_size").get_to(snapshot.world_size);
  object.at("process").get_to(snapshot.process);
  object.at("host").get_to(snapshot.host);
  snapshot.verdict = object.value("verdict", "");  // reports of version 0.1 have none
  for (const auto& group : object.at("groups")) {
    snapshot.groups.push_back({group.at("name").get<std::string>(), group.at("size").get<int>(),
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
