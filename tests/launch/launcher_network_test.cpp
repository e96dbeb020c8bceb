#include <tessera/store/secret.h>

#include <gtest/gtest.h>

#include <csignal>

#include "support/error_message.h"
#include "two_networks.h"
#include "two_nodes.h"

namespace tessera::testing {
namespace {

class LauncherNetwork : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!networks_.made()) GTEST_SKIP() << "network namespaces need the rights of root";
  }

  std::unique_ptr<Launcher> start(int node, const std::string& script) const {
    return std::make_unique<Launcher>(shell_ranks(1, script, job_.options(node)), std::map<std::string, std::string>{},
                                      networks_.inside(node));
  }

  TwoNetworks networks_;
  TwoNodes job_{TwoNetworks::address(0)};
};

TEST_F(LauncherNetwork, JoinsNodesThatShareNothingElse) {
  const auto zero = start(0, TESSERA_TEST_RANK " meet");
  const auto one = start(1, TESSERA_TEST_RANK " meet");
  EXPECT_EQ(zero->wait(), 0) << zero->errors();
  EXPECT_EQ(one->wait(), 0) << one->errors();
  EXPECT_EQ(zero->output(), "[rank 0] met 2, port agreed\n");
  EXPECT_EQ(one->output(), "[rank 1] met 2, port agreed\n");
  zero->expect_no_processes();
  one->expect_no_processes();
}

TEST_F(LauncherNetwork, EndsBothNodesWhenTheLinkIsCut) {
  const auto zero = start(0, "echo ready; exec sleep 60");
  const auto one = start(1, "echo ready; exec sleep 60");
  ASSERT_TRUE(zero->wait_for_output("ready") && one->wait_for_output("ready"));
  ASSERT_TRUE(networks_.cut());
  EXPECT_EQ(zero->wait(std::chrono::seconds(15)), 3);
  EXPECT_EQ(one->wait(std::chrono::seconds(15)), 3);
  expect_parts(zero->errors(), {"node 1 (", "was lost"});
  expect_parts(one->errors(), {"node 0 (", "was lost"});
  zero->expect_no_processes();
  one->expect_no_processes();
}

}  // namespace
}  // namespace tessera::testing
