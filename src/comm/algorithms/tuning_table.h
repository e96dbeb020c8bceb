#pragma once

#include <tessera/comm/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::comm {

/// Which strategy the adaptive strategy chooses. The first rule that fits wins.
class TuningTable {
 public:
  struct Rule {
    std::string backend;         ///< of the group, or "*"
    int max_ranks = 0;           ///< 0: any
    std::int64_t max_bytes = 0;  ///< 0: any
    bool several_nodes = false;  ///< whether the group spans nodes
    CommunicationStrategy strategy = CommunicationStrategy::kBackend;
  };

  /// The table used where none was measured.
  static TuningTable built_in();
  /// Reads what `to_json` wrote. Throws ConfigError naming the file and the fault.
  static TuningTable load(const std::string& path);

  explicit TuningTable(std::vector<Rule> rules) : rules_(std::move(rules)) {}
  TuningTable() : TuningTable(built_in()) {}

  CommunicationStrategy choose(const std::string& backend, int num_ranks, bool several_nodes,
                               std::int64_t num_bytes) const;
  std::string to_json() const;
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  std::vector<Rule> rules_;
};

}  // namespace tessera::comm
