#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher.h"

namespace tessera::testing {

/// What the launchers of one job of two nodes share.
class TwoNodes {
 public:
  explicit TwoNodes(const std::string& address = "127.0.0.1");

  /// The options of one node, before those that a test adds, with a wrong secret if asked for.
  std::vector<std::string> options(int node, bool right_secret = true, int num_nodes = 2) const;

  /// `sh -c script` as the ranks of a node.
  std::unique_ptr<Launcher> shell(int node, const std::string& script, std::vector<std::string> more = {},
                                  int num_ranks = 1) const;
  /// The test's own rank with these words.
  std::unique_ptr<Launcher> rank(int node, const std::vector<std::string>& words, std::vector<std::string> more = {},
                                 int num_ranks = 1) const;

  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
  std::string endpoint_;
};

/// Kills what the user started and what supervises, in one instant.
void kill_both(const Launcher& launcher);

}  // namespace tessera::testing
