#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "launch/two_networks.h"
#include "launch/two_nodes.h"

namespace tessera::testing {
namespace {

/// Two nodes with two ranks each, and a link between them that carries what is sent from one to the other.
class ShardedOverTwoNetworks : public ::testing::Test {
 protected:
  struct Traffic {
    double sent = 0;   ///< bytes of a step over the link, by one node
    double model = 0;  ///< bytes of all parameters
  };

  void SetUp() override {
    if (!networks_.made()) GTEST_SKIP() << "network namespaces need the rights of root";
  }

  Traffic train(const std::string& how) const {
    const auto zero = start(0, how);
    const auto one = start(1, how);
    EXPECT_EQ(zero->wait(kTimeout), 0) << zero->errors();
    EXPECT_EQ(one->wait(kTimeout), 0) << one->errors();
    Traffic traffic;
    const std::string output = zero->output();
    const auto begin = output.find("sent ");
    std::istringstream line(begin == std::string::npos ? "" : output.substr(begin));
    std::string word;
    line >> word >> traffic.sent >> word >> traffic.model;
    EXPECT_FALSE(line.fail()) << output;
    return traffic;
  }

 private:
  static constexpr std::chrono::seconds kTimeout{100};

  std::unique_ptr<Launcher> start(int node, const std::string& how) const {
    auto arguments = job_.options(node);
    arguments.insert(arguments.end(), {"--nproc-per-node", "2", TESSERA_TEST_RANK, how});
    return std::make_unique<Launcher>(arguments, std::map<std::string, std::string>{{"OMP_NUM_THREADS", "1"}},
                                      networks_.inside(node));
  }

  TwoNetworks networks_;
  TwoNodes job_{TwoNetworks::address(0)};
};

TEST_F(ShardedOverTwoNetworks, OnlyReplicasTalkOverTheLink) {
  const Traffic hybrid = train("hybrid");
  RecordProperty("hybrid_sent_of_model", std::to_string(hybrid.sent / hybrid.model));
  // Each rank averages its half of the gradients with its replica: of two, each sends its half once. Gathers stay
  // within a node. The rest is what frames and acknowledgements take.
  EXPECT_GE(hybrid.sent, hybrid.model);
  EXPECT_LE(hybrid.sent, 1.1 * hybrid.model);
}

TEST_F(ShardedOverTwoNetworks, GathersGoOverTheLinkWithoutReplicas) {
  const Traffic full = train("full");
  RecordProperty("full_sent_of_model", std::to_string(full.sent / full.model));
  EXPECT_GE(full.sent, 1.4 * full.model) << "so the test above can fail";
}

}  // namespace
}  // namespace tessera::testing
