#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/flight/hang_report.h>
#include <tessera/flight/rank_set.h>
#include <tessera/flight/snapshot.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tessera::flight {

/// Throws ConfigError for a fraction, for a number that does not fit and for anything that is no number. The library
/// would convert them, a number that does not fit with undefined behaviour.
template <typename Integer>
Integer whole_number(const nlohmann::json& value) {
  if (value.is_number_unsigned() && std::in_range<Integer>(value.get<std::uint64_t>())) return value.get<Integer>();
  if (value.is_number_integer() && !value.is_number_unsigned() && std::in_range<Integer>(value.get<std::int64_t>())) {
    return value.get<Integer>();
  }
  throw ConfigError(std::string("expected a whole number that fits, found ") + value.type_name());
}

template <typename Integer>
std::vector<Integer> whole_numbers(const nlohmann::json& list) {
  std::vector<Integer> numbers;
  for (const auto& value : list) numbers.push_back(whole_number<Integer>(value));
  return numbers;
}

/// Reads a whole number into a field.
template <typename Integer>
void read_number(const nlohmann::json& object, const char* key, Integer& field) {
  field = whole_number<Integer>(object.at(key));
}

/// With the `num_calls` latest calls.
nlohmann::json to_object(const Snapshot& snapshot, std::size_t num_calls);
/// Throws nlohmann::json::exception, or ConfigError, for what is not a snapshot.
Snapshot snapshot_from(const nlohmann::json& object);

namespace {

constexpr const char* kFormat = "tessera hang report 1";
constexpr std::array<const char*, 6> kConditions = {"waiting", "running", "stopped", "silent", "dead", "missing"};

RankCondition condition_from(const std::string& name) {
  for (std::size_t i = 0; i < kConditions.size(); ++i) {
    if (name == kConditions[i]) return static_cast<RankCondition>(i);
  }
  throw ConfigError("a rank cannot be \"" + name + "\"");
}

RankStatus status_from(const nlohmann::json& object) {
  RankStatus status;
  read_number(object, "rank", status.rank);
  status.condition = condition_from(object.at("condition").get<std::string>());
  object.at("detail").get_to(status.detail);
  object.at("stack").get_to(status.stack);
  if (!object.at("snapshot").is_null()) status.snapshot = snapshot_from(object.at("snapshot"));
  return status;
}

}  // namespace

std::string to_json(const HangReport& report) {
  nlohmann::json findings = nlohmann::json::array();
  for (const Finding& finding : report.findings) {
    findings.push_back(
        {{"ranks", finding.ranks}, {"what", finding.what}, {"details", finding.details}, {"advice", finding.advice}});
  }
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankStatus& status : report.ranks) {
    nlohmann::json snapshot;
    if (status.snapshot) snapshot = to_object(*status.snapshot, std::numeric_limits<std::size_t>::max());
    ranks.push_back({{"rank", status.rank},
                     {"condition", kConditions[static_cast<std::size_t>(status.condition)]},
                     {"detail", status.detail},
                     {"stack", status.stack},
                     {"snapshot", std::move(snapshot)}});
  }
  const nlohmann::json object = {
      {"format", kFormat},         {"trigger", report.trigger},       {"fatal", report.fatal},
      {"time_ns", report.time_ns}, {"world_size", report.world_size}, {"findings", std::move(findings)},
      {"ranks", std::move(ranks)}};
  return object.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

HangReport hang_report_from_json(std::string_view text) {
  try {
    const auto object = nlohmann::json::parse(text);
    if (object.at("format") != kFormat) throw ConfigError("this is not a hang report of this version of Tessera");
    HangReport report;
    object.at("trigger").get_to(report.trigger);
    object.at("fatal").get_to(report.fatal);
    read_number(object, "time_ns", report.time_ns);
    read_number(object, "world_size", report.world_size);
    for (const auto& finding : object.at("findings")) {
      report.findings.push_back({whole_numbers<int>(finding.at("ranks")), finding.at("what").get<std::string>(),
                                 finding.at("details").get<std::vector<std::string>>(),
                                 finding.at("advice").get<std::string>()});
    }
    for (const auto& rank : object.at("ranks")) report.ranks.push_back(status_from(rank));
    return report;
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(std::string("this is not a hang report: ") + error.what());
  }
}

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
          {"ended_ns", call.ended_ns},
          {"peer", call.peer},
          {"awaited_ns", call.awaited_ns}};
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
  if (object.contains("peer")) read_number(object, "peer", call.peer);  // reports of version 0.1 lack these
  if (object.contains("awaited_ns")) read_number(object, "awaited_ns", call.awaited_ns);
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
  nlohmann::json task;
  if (snapshot.task) task = {{"what", snapshot.task->what}, {"started_ns", snapshot.task->started_ns}};
  return {{"rank", snapshot.rank},       {"world_size", snapshot.world_size},
          {"process", snapshot.process}, {"host", snapshot.host},
          {"verdict", snapshot.verdict}, {"groups", std::move(groups)},
          {"calls", std::move(calls)},   {"task", std::move(task)}};
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
  if (object.contains("task") && !object.at("task").is_null()) {
    snapshot.task.emplace();
    object.at("task").at("what").get_to(snapshot.task->what);
    read_number(object.at("task"), "started_ns", snapshot.task->started_ns);
  }
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

namespace {

constexpr int kLabelColumns = 7;

/// `text` in lines of `width` columns, all but the first behind as many blanks as the label takes.
std::string wrapped(const std::string& label, const std::string& text, int width) {
  std::string indent(kLabelColumns, ' ');
  std::string line = label;
  line.resize(std::max<std::size_t>(label.size(), kLabelColumns), ' ');
  // Leading blanks are kept: they indent the frames of a stack.
  const auto front = text.find_first_not_of(' ');
  if (front != std::string::npos && front > 0) {
    line.append(front, ' ');
    indent.append(front + 2, ' ');
  }
  std::string result;
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && line.size() + 1 + word.size() > static_cast<std::size_t>(width)) {
      result += line + "\n";
      line = indent + word;
    } else {
      line += (first ? "" : " ") + word;
    }
  }
  return result + line + "\n";
}

std::string state_of(const RankStatus& status) {
  std::string text = verb(status.condition);
  if (!status.detail.empty()) text += " (" + status.detail + ")";
  if (!status.snapshot) return text;
  const auto& task = status.snapshot->task;
  if (task) text += " in " + task->what;
  const CallRecord* const call = current_call(*status.snapshot);
  if (call == nullptr) return text;
  // One that failed is where the rank was when another ended.
  const bool is_in_it = is_waited_in(*call) || (task && call->state == CallState::kFailed);
  return text + (!is_in_it ? ", last call " : task ? ": " : " in ") + to_string(*call);
}

/// Since when it waits in its call, or, if it waits in none, does its task; 0: neither.
std::int64_t begin_of(const RankStatus& status) {
  if (!status.snapshot) return 0;
  const CallRecord* const call = current_call(*status.snapshot);
  if (call != nullptr && is_waited_in(*call)) return waits_since(*call);
  return status.snapshot->task ? status.snapshot->task->started_ns : 0;
}

/// Ranks that do the same are one line, for there may be thousands.
std::string table(const HangReport& report, int width) {
  std::vector<std::string> states;
  std::map<std::string, std::vector<const RankStatus*>> by_state;
  for (const RankStatus& status : report.ranks) {
    const std::string state = state_of(status);
    if (by_state[state].empty()) states.push_back(state);
    by_state[state].push_back(&status);
  }
  std::string text;
  for (const std::string& state : states) {
    std::vector<int> ranks;
    std::int64_t longest = 0;
    for (const RankStatus* status : by_state[state]) {
      ranks.push_back(status->rank);
      if (const std::int64_t begin = begin_of(*status); begin != 0) longest = std::max(longest, report.time_ns - begin);
    }
    text += wrapped(ranks_text(ranks) + " ", state + (longest > 0 ? ", for " + seconds_text(longest) : ""), width);
  }
  return text;
}

}  // namespace

std::string to_text(const HangReport& report, int width) {
  const std::string rule(static_cast<std::size_t>(width), '-');
  std::string text = rule + "\n";
  text += wrapped(report.fatal ? "HANG" : "SLOW", report.trigger, width);
  if (report.findings.empty()) {
    text += wrapped("why", "what the ranks recorded does not tell: all that answered are at the same call", width);
  }
  for (const Finding& finding : report.findings) {
    text += wrapped("why", finding.what, width);
    for (const std::string& detail : finding.details) text += wrapped("", detail, width);
    if (!finding.advice.empty()) text += wrapped("do", finding.advice, width);
  }
  return text + "ranks\n" + table(report, width) + rule + "\n";
}

}  // namespace tessera::flight
