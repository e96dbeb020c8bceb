#include "comm/algorithms/tuning_table.h"

#include <tessera/core/error.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace tessera::comm {
namespace {

constexpr int kVersion = 1;

TuningTable::Rule rule_from(const nlohmann::json& json) {
  TuningTable::Rule rule;
  rule.backend = json.at("backend").get<std::string>();
  rule.max_ranks = json.at("max_ranks").get<int>();
  rule.max_bytes = json.at("max_bytes").get<std::int64_t>();
  rule.several_nodes = json.at("several_nodes").get<bool>();
  rule.strategy = parse_communication_strategy(json.at("strategy").get<std::string>());
  if (rule.strategy == CommunicationStrategy::kAdaptive) throw ConfigError("a rule cannot itself be adaptive");
  return rule;
}

}  // namespace

TuningTable TuningTable::built_in() {
  // Shared memory's own algorithm wins at every size. Over sockets the tree wins while latency dominates; for larger
  // messages between nodes, the algorithm that crosses the network least often.
  return TuningTable({
      {"shm", 0, 0, false, CommunicationStrategy::kBackend},
      {"threads", 0, 0, false, CommunicationStrategy::kBackend},
      {"gloo", 0, 4096, true, CommunicationStrategy::kTree},
      {"*", 0, 0, true, CommunicationStrategy::kHierarchical},
      {"gloo", 0, 4096, false, CommunicationStrategy::kTree},
      {"*", 0, 0, false, CommunicationStrategy::kBackend},
  });
}

TuningTable TuningTable::load(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw ConfigError("the tuning table " + path + " cannot be read; `tessera bench comm` writes one");
  try {
    const auto json = nlohmann::json::parse(file);
    if (json.at("version").get<int>() != kVersion) throw ConfigError("expected version " + std::to_string(kVersion));
    std::vector<Rule> rules;
    for (const auto& rule : json.at("rules")) rules.push_back(rule_from(rule));
    return TuningTable(std::move(rules));
  } catch (const std::exception& error) {
    throw ConfigError("the tuning table " + path + " is not valid: " + error.what());
  }
}

CommunicationStrategy TuningTable::choose(const std::string& backend, int num_ranks, bool several_nodes,
                                          std::int64_t num_bytes) const {
  for (const Rule& rule : rules_) {
    if (rule.backend != "*" && rule.backend != backend) continue;
    if (rule.several_nodes != several_nodes) continue;
    if (rule.max_ranks != 0 && num_ranks > rule.max_ranks) continue;
    if (rule.max_bytes != 0 && num_bytes > rule.max_bytes) continue;
    return rule.strategy;
  }
  return CommunicationStrategy::kBackend;
}

std::string TuningTable::to_json() const {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["rules"] = nlohmann::ordered_json::array();
  for (const Rule& rule : rules_) {
    json["rules"].push_back({{"backend", rule.backend},
                             {"max_ranks", rule.max_ranks},
                             {"max_bytes", rule.max_bytes},
                             {"several_nodes", rule.several_nodes},
                             {"strategy", to_string(rule.strategy)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace tessera::comm
