#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "support/error_message.h"
#include "two_nodes.h"

namespace tessera::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// Ready, then busy for longer than any test takes.
const char* const kBusy = "echo ready; exec sleep 60";

void expect_both_gone(const Launcher& one, const Launcher& other) {
  one.expect_no_processes();
  other.expect_no_processes();
}

TEST(LauncherNodes, NumberTheirRanksTogether) {
  const TwoNodes job;
  const std::string script = "echo $LOCAL_RANK/$LOCAL_WORLD_SIZE $RANK/$WORLD_SIZE node $NODE_RANK $MASTER_ADDR";
  const auto zero = job.shell(0, script, {}, 1);
  const auto one = job.shell(1, script, {}, 2);
  EXPECT_EQ(zero->wait(), 0) << zero->errors();
  EXPECT_EQ(one->wait(), 0) << one->errors();
  EXPECT_EQ(zero->output(), "[rank 0] 0/1 0/3 node 0 127.0.0.1\n");
  EXPECT_EQ(one->output_lines(),
            (std::vector<std::string>{"[rank 1] 0/2 1/3 node 1 127.0.0.1", "[rank 2] 1/2 2/3 node 1 127.0.0.1"}));
}

TEST(LauncherNodes, MeetWhoeverComesFirst) {
  const TwoNodes job;
  const auto one = job.rank(1, {"meet"}, {}, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto zero = job.rank(0, {"meet"}, {}, 2);
  EXPECT_EQ(zero->wait(), 0) << zero->errors();
  EXPECT_EQ(one->wait(), 0) << one->errors();
  expect_parts(zero->output(), {"[rank 0] met 4, port agreed", "[rank 1] met 4, port agreed"});
  expect_parts(one->output(), {"[rank 2] met 4, port agreed", "[rank 3] met 4, port agreed"});
  EXPECT_EQ(zero->errors() + one->errors(), "");
  expect_both_gone(*zero, *one);
}

TEST(LauncherNodes, SucceedOnlyTogether) {
  const TwoNodes job;
  const auto zero = job.shell(0, "exit 0");
  const auto one = job.shell(1, "sleep 0.3; exit 9");
  EXPECT_EQ(zero->wait(), 9);
  EXPECT_EQ(one->wait(), 9);
  expect_parts(zero->errors(), {"because of rank 1 on node 1 (", "exited with code 9", "rank 0 (pid", "had finished"});
  expect_parts(one->errors(), {"because of rank 1 of node 1, this one", "exited with code 9"});
}

TEST(LauncherNodes, EndTogetherWhenARankIsKilled) {
  const TwoNodes job;
  const auto zero = job.rank(0, {"record", "3", "kill"}, {}, 2);
  const auto one = job.rank(1, {"record", "3", "kill"}, {}, 2);
  EXPECT_EQ(zero->wait(), 137);
  EXPECT_EQ(one->wait(), 137);
  expect_parts(zero->errors(),
               {"because of rank 3 on node 1 (", "was ended by SIGKILL", "ending the ranks of this node",
                "rank 3 is dead: on node 1", "ranks 0,1 wait for it in all_reduce #2"});
  expect_parts(one->errors(), {"because of rank 3 of node 1, this one", "rank 3 is dead: ended by SIGKILL",
                               "rank 2 waits for it in all_reduce #2"});
  expect_both_gone(*zero, *one);
}

TEST(LauncherNodes, AgreeOnRestarts) {
  const TwoNodes job;
  const auto zero = job.rank(0, {"meet", "0"}, {"--max-restarts", "1"});
  const auto one = job.rank(1, {"meet", "0"}, {"--max-restarts", "1"});
  EXPECT_EQ(zero->wait(), 0) << zero->errors();
  EXPECT_EQ(one->wait(), 0) << one->errors();
  expect_parts(zero->output(), {"[rank 0] met 2, port agreed", "[rank 0] left of generation 0: 0"});
  expect_parts(one->output(), {"[rank 1] met 2, port agreed", "[rank 1] left of generation 0: 0"});
  expect_parts(zero->errors(), {"because of rank 0 of node 0", "code 7", "restart 1 of 1 now"});
  expect_parts(one->errors(), {"because of rank 0 on node 0 (", "code 7", "restart 1"});
  expect_both_gone(*zero, *one);
}

TEST(LauncherNodes, GiveUpAfterTheLastRestartOfNodeZero) {
  const TwoNodes job;
  const auto zero = job.shell(0, "sleep 20", {"--max-restarts", "2"});
  const auto one = job.shell(1, "echo $TORCHELASTIC_RESTART_COUNT; exit 6", {"--max-restarts", "9"});
  EXPECT_EQ(zero->wait(), 6) << zero->errors();
  EXPECT_EQ(one->wait(), 6) << one->errors();
  EXPECT_EQ(one->output(), "[rank 1] 0\n[rank 1] 1\n[rank 1] 2\n");
}

TEST(LauncherNodes, EndWhenTheLauncherOfNodeOneIsKilled) {
  const TwoNodes job;
  const auto zero = job.shell(0, kBusy);
  const auto one = job.shell(1, kBusy);
  ASSERT_TRUE(zero->wait_for_output("ready") && one->wait_for_output("ready"));
  const auto start = Clock::now();
  kill_both(*one);
  EXPECT_EQ(zero->wait(), 3);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(8));
  expect_parts(zero->errors(), {"the job failed because node 1 (", "was lost", "rank 0 (pid"});
  EXPECT_EQ(one->wait(), 137);
  expect_both_gone(*zero, *one);
}

TEST(LauncherNodes, EndWhenOnlyTheFrontOfNodeOneIsKilled) {
  const TwoNodes job;
  const auto zero = job.shell(0, kBusy);
  const auto one = job.shell(1, kBusy);
  ASSERT_TRUE(zero->wait_for_output("ready") && one->wait_for_output("ready"));
  one->send(SIGKILL);
  EXPECT_EQ(zero->wait(), 3);
  expect_parts(zero->errors(), {"node 1 (", "was lost"});
  EXPECT_EQ(one->wait(), 137);
  expect_both_gone(*zero, *one);
}

TEST(LauncherNodes, EndWhenTheLauncherOfNodeZeroIsKilled) {
  const TwoNodes job;
  const auto zero = job.shell(0, kBusy);
  const auto one = job.shell(1, kBusy);
  ASSERT_TRUE(zero->wait_for_output("ready") && one->wait_for_output("ready"));
  const auto start = Clock::now();
  kill_both(*zero);
  EXPECT_EQ(one->wait(), 3);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(8));
  expect_parts(one->errors(), {"the job failed because node 0 (", "was lost", "rank 1 (pid"});
  EXPECT_EQ(zero->wait(), 137);
  expect_both_gone(*zero, *one);
}

TEST(LauncherNodes, EndWhenTheLauncherOfNodeOneIsStopped) {
  const TwoNodes job;
  const auto zero = job.shell(0, kBusy);
  const auto one = job.shell(1, kBusy);
  ASSERT_TRUE(zero->wait_for_output("ready") && one->wait_for_output("ready"));
  const auto start = Clock::now();
  kill(one->supervisor(), SIGSTOP);
  EXPECT_EQ(zero->wait(), 3);
  EXPECT_GT(Clock::now() - start, std::chrono::seconds(3));  // a short pause is none
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  expect_parts(zero->errors(), {"node 1 (", "was lost"});
  kill(one->supervisor(), SIGCONT);
  EXPECT_EQ(one->wait(), 3);
  expect_parts(one->errors(), {"node 0 (", "was lost"});
  expect_both_gone(*zero, *one);
}

TEST(LauncherNodes, EndWhenOneOfThemGetsASignal) {
  for (const int signalled : {0, 1}) {
    const TwoNodes job;
    const auto zero = job.shell(0, kBusy);
    const auto one = job.shell(1, kBusy);
    ASSERT_TRUE(zero->wait_for_output("ready") && one->wait_for_output("ready"));
    (signalled == 0 ? zero : one)->send(SIGTERM);
    EXPECT_EQ(zero->wait(), 143);
    EXPECT_EQ(one->wait(), 143);
    expect_parts((signalled == 0 ? one : zero)->errors(),
                 {"node " + std::to_string(signalled) + " (", "got SIGTERM; ending the ranks of this node"});
    expect_both_gone(*zero, *one);
  }
}

TEST(LauncherNodes, EndWhileTheyWaitForEachOther) {
  const TwoNodes job;
  for (const int node : {0, 1}) {
    const auto alone = job.shell(node, kBusy);
    EXPECT_TRUE(eventually([&] { return alone->supervisor() > 0; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    alone->send(SIGINT);
    EXPECT_EQ(alone->wait(std::chrono::seconds(8)), 130);
    EXPECT_EQ(alone->output(), "");
    alone->expect_no_processes();
  }
}

TEST(LauncherNodes, SayWhichOneIsMissing) {
  const TwoNodes job;
  const auto zero = job.shell(0, kBusy, {"--rdzv-timeout", "500ms"});
  EXPECT_EQ(zero->wait(), 3);
  EXPECT_EQ(zero->output(), "");
  expect_parts(zero->errors(), {"the job has 2 nodes", "node 1", "rdzv_timeout"});
  const auto one = job.shell(1, kBusy, {"--rdzv-timeout", "500ms"});
  EXPECT_EQ(one->wait(), 3);
  expect_parts(one->errors(), {"the launcher of node 0 was not reached at 127.0.0.1:", "firewall"});
}

TEST(LauncherNodes, RefuseAnotherSecret) {
  const TwoNodes job;
  const auto zero = job.shell(0, kBusy, {"--rdzv-timeout", "3s"});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  Launcher one(shell_ranks(1, kBusy, job.options(1, false)));
  EXPECT_EQ(one.wait(std::chrono::seconds(10)), 3);
  expect_parts(one.errors(), {"does not have this secret", "the same secret"});
  EXPECT_EQ(zero->wait(), 3);
  EXPECT_EQ(one.output() + zero->output(), "");
}

TEST(LauncherNodes, RefuseANumberThatIsTakenAndGoOn) {
  const TwoNodes job;
  const auto zero = job.shell(0, "sleep 1.5");
  const auto one = job.shell(1, "echo ready; sleep 1");
  ASSERT_TRUE(one->wait_for_output("ready"));
  const auto twice = job.shell(1, kBusy);
  EXPECT_EQ(twice->wait(), 2);
  expect_parts(twice->errors(), {"node_rank 1", "is taken by the launcher on"});
  EXPECT_EQ(zero->wait(), 0) << zero->errors();
  EXPECT_EQ(one->wait(), 0) << one->errors();
}

TEST(LauncherNodes, RefuseAnotherNumberOfNodes) {
  const TwoNodes job;
  const auto zero = job.shell(0, "true", {"--rdzv-timeout", "5s"});
  Launcher one(shell_ranks(1, "true", job.options(1, true, 3)));
  EXPECT_EQ(one.wait(), 2);
  expect_parts(one.errors(), {"nnodes: expected 2", "found 3"});
  EXPECT_EQ(zero->wait(), 3);
}

TEST(LauncherNodes, EndWhenAProgramCannotBeStartedOnOne) {
  const TwoNodes job;
  const std::string script = job.folder().file("script");
  std::ofstream(script) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const auto zero = job.shell(0, kBusy, {"--max-restarts", "3"});
  auto arguments = job.options(1);
  arguments.push_back(script);
  Launcher one(arguments);
  EXPECT_EQ(one.wait(), 127);
  EXPECT_EQ(zero->wait(), 127);
  expect_parts(zero->errors(), {"node 1 (", "cannot be started"});
  expect_both_gone(*zero, one);
}

}  // namespace
}  // namespace tessera::testing
