#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "launcher.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

using Lines = std::vector<std::string>;

TEST(LauncherRestart, StartsAFailedJobAgainWithANewGeneration) {
  Launcher launcher(shell_ranks(2,
                                "echo try $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3",
                                {"--max-restarts", "3"}));
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  EXPECT_NE(launcher.output().find("[rank 1] try 2\n"), std::string::npos);
  EXPECT_EQ(launcher.output().find("try 3"), std::string::npos);
  expect_parts(launcher.errors(), {"restart 1 of 3 now", "restart 2 of 3 in 100 ms", "exited with code 3"});
}

TEST(LauncherRestart, GivesUpAfterTheLastAttempt) {
  const TemporaryFolder logs;
  const auto start = std::chrono::steady_clock::now();
  Launcher launcher(
      shell_ranks(1, "echo $TORCHELASTIC_RESTART_COUNT; exit 6", {"--max-restarts", "3", "--log-dir", logs.path()}));
  EXPECT_EQ(launcher.wait(), 6);
  EXPECT_EQ(launcher.output_lines(), (Lines{"[rank 0] 0", "[rank 0] 1", "[rank 0] 2", "[rank 0] 3"}));
  EXPECT_EQ(text_of_file(logs.path() / "attempt_3/rank_0/stdout.log"), "3\n");
  // 0 + 100 + 200 ms
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(300));
}

TEST(LauncherRestart, KeepsThePortForTheNextGeneration) {
  Launcher launcher(shell_ranks(1, "echo $MASTER_PORT; exit 1", {"--max-restarts", "1"}));
  EXPECT_EQ(launcher.wait(), 1);
  const Lines lines = launcher.output_lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0], lines[1]);
}

TEST(LauncherRestart, LeavesNothingOfTheFormerGeneration) {
  Launcher launcher(shell_ranks(1, R"(
    if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
      (setsid sh -c 'echo $$ >$TEST_FOLDER/pid; exec sleep 60' &)
      while [ ! -s $TEST_FOLDER/pid ]; do sleep 0.01; done
      exit 1
    fi
    kill -0 $(cat $TEST_FOLDER/pid) 2>/dev/null && echo alive || echo gone)",
                                {"--max-restarts", "1"}));
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  EXPECT_EQ(launcher.output(), "[rank 0] gone\n");
}

TEST(LauncherRestart, EndsWhileItWaits) {
  Launcher launcher(shell_ranks(1, "echo $TORCHELASTIC_RESTART_COUNT; exit 1", {"--max-restarts", "100"}));
  ASSERT_TRUE(launcher.wait_for_output("[rank 0] 4\n"));  // a pause of 0.8 s follows
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
}

}  // namespace
}  // namespace tessera::testing
