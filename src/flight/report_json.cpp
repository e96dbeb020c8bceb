#include <tessera/core/error.h>
#include <tessera/flight/hang_report.h>

#include <array>
#include <limits>

#include "flight/json_fields.h"

namespace tessera::flight {
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

}  // namespace tessera::flight
