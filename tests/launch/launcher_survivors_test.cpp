#include <gtest/gtest.h>

#include <csignal>

#include "launcher.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

/// Four ranks that are hard to get rid of: one whose children left its session and parent, one that ignores what can be
/// ignored, one that is stopped, and one that is a script with a pipeline.
constexpr const char* kHardToKill = R"(
  case $RANK in
    0) (setsid sh -c 'setsid sleep 1000 & sleep 1000' &) ;;
    1) trap '' TERM INT HUP ;;
    2) echo "rank 2 ready"; kill -STOP $$ ;;
    3) sleep 1000 | sleep 1000 & ;;
  esac
  echo "rank $RANK ready"
  while true; do sleep 0.05; done)";

void wait_until_ready(const Launcher& launcher) {
  for (const char* line : {"rank 0 ready", "rank 1 ready", "rank 2 ready", "rank 3 ready"}) {
    ASSERT_TRUE(launcher.wait_for_output(line));
  }
  // Front, supervisor, four ranks, three sleepers of rank 0, two of rank 3.
  EXPECT_TRUE(eventually([&] { return launcher.processes().size() >= 11; })) << launcher.processes().size();
}

TEST(LauncherSurvivors, AreNoneAfterItsOwnDeath) {
  Launcher launcher(shell_ranks(4, kHardToKill));
  wait_until_ready(launcher);
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.wait(), 137);
  launcher.expect_no_processes();
}

TEST(LauncherSurvivors, AreNoneAfterTheSupervisorsDeath) {
  Launcher launcher(shell_ranks(4, kHardToKill));
  wait_until_ready(launcher);
  kill(launcher.supervisor(), SIGKILL);
  EXPECT_EQ(launcher.wait(), 137);
  expect_parts(launcher.errors(), {"the supervisor", "SIGKILL"});
  // Not only soon: before the command ends.
  EXPECT_TRUE(launcher.processes().empty());
}

TEST(LauncherSurvivors, AreNoneAfterASignal) {
  Launcher launcher(shell_ranks(4, kHardToKill, {"--grace", "300ms"}));
  wait_until_ready(launcher);
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
  EXPECT_TRUE(launcher.processes().empty());
}

TEST(LauncherSurvivors, AreNoneAfterAFailure) {
  Launcher launcher(
      shell_ranks(5, std::string("[ $RANK = 4 ] && { sleep 1; exit 8; }") + kHardToKill, {"--grace", "300ms"}));
  EXPECT_EQ(launcher.wait(), 8);
  EXPECT_TRUE(launcher.processes().empty());
}

TEST(LauncherSurvivors, AreNoRanksThoughBothOfItsProcessesDie) {
  Launcher launcher(shell_ranks(2, "trap '' TERM HUP; echo ready; while true; do sleep 0.05; done"));
  ASSERT_TRUE(launcher.wait_for_output("[rank 0] ready"));
  ASSERT_TRUE(launcher.wait_for_output("[rank 1] ready"));
  const pid_t supervisor = launcher.supervisor();
  stop_process(supervisor);  // so that it cannot answer to the first death
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.wait(), 137);
  kill(supervisor, SIGKILL);
  launcher.expect_no_processes();
}

TEST(LauncherSurvivors, DoNotHoldItUpByTheirPipes) {
  const auto start = std::chrono::steady_clock::now();
  Launcher launcher(shell_ranks(2, "(setsid sleep 1000 &) ; echo done"));
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_TRUE(launcher.processes().empty());
  EXPECT_EQ(launcher.output_lines(), (std::vector<std::string>{"[rank 0] done", "[rank 1] done"}));
}

TEST(LauncherSurvivors, AreNoneThoughTheyKeepForking) {
  Launcher launcher(shell_ranks(1, R"(
    (setsid sh -c 'while true; do (sleep 0.2 &) ; done' &)
    sleep 0.3; exit 5)"));
  EXPECT_EQ(launcher.wait(), 5);
  launcher.expect_no_processes();
}

}  // namespace
}  // namespace tessera::testing
