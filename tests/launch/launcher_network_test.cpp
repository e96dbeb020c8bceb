#include <tessera/store/secret.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "launch/program_path.h"
#include "support/error_message.h"
#include "two_nodes.h"

namespace tessera::testing {
namespace {

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }  // NOLINT

/// Two network namespaces, each with a loopback of its own, joined by a link.
class TwoNetworks {
 public:
  TwoNetworks() {
    const std::string unique = "tessera-test-" + std::to_string(getpid()) + "-";
    names_ = {unique + "0", unique + "1"};
    made_ = run("ip netns add " + names_[0]) && run("ip netns add " + names_[1]) &&
            // Made inside them: the machine's own network sees neither the link nor its addresses.
            run("ip link add link0 netns " + names_[0] + " type veth peer name link0 netns " + names_[1]) &&
            set_up(0) && set_up(1);
  }
  ~TwoNetworks() {
    for (const std::string& name : names_) run("ip netns delete " + name);
  }
  TwoNetworks(const TwoNetworks&) = delete;
  TwoNetworks& operator=(const TwoNetworks&) = delete;

  bool made() const { return made_; }
  static std::string address(int node) { return "10.231.78." + std::to_string(node + 1); }
  std::vector<std::string> inside(int node) const {
    return {launch::find_program("ip").path, "netns", "exec", names_.at(static_cast<std::size_t>(node))};
  }
  /// Packets vanish from now on; nobody is told.
  bool cut() const { return run("ip -n " + names_[1] + " link set link0 down"); }

 private:
  bool set_up(int node) const {
    const std::string ip = "ip -n " + names_.at(static_cast<std::size_t>(node));
    return run(ip + " address add " + address(node) + "/24 dev link0") && run(ip + " link set lo up") &&
           run(ip + " link set link0 up");
  }

  std::array<std::string, 2> names_;
  bool made_ = false;
};

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
