#include <gtest/gtest.h>

#include <csignal>

#include "launcher.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

/// Only the report, without what the ranks wrote before it.
std::string report_of(const Launcher& launcher) {
  const std::string errors = launcher.errors();
  const auto start = errors.find("tessera run: the job failed because of");
  return start == std::string::npos ? "no report in:\n" + errors : errors.substr(start);
}

TEST(LauncherFailure, NamesTheFirstThoughOthersFailOfIt) {
  // Rank 2 fails; the others see its file and fail too, with a code of their own.
  Launcher launcher(shell_ranks(4, R"(
    if [ $RANK = 2 ]; then echo "about to fail"; touch $TEST_FOLDER/gone; exit 5; fi
    while [ ! -e $TEST_FOLDER/gone ]; do sleep 0.01; done
    sleep 0.05; exit 3)"));
  EXPECT_EQ(launcher.wait(), 5);
  expect_parts(report_of(launcher), {"because of rank 2", "exited with code 5", "| about to fail", "rank 0 (pid",
                                     "rank 1 (pid", "rank 3 (pid", "later"});
}

TEST(LauncherFailure, KnowsTheFirstOfThoseThatDiedWhileItWasStopped) {
  // Neither death is seen before both have happened: what decides is the order, which is against that of the ids.
  Launcher launcher(shell_ranks(3, R"(
    echo ready
    while [ ! -e $TEST_FOLDER/go ]; do sleep 0.01; done
    [ $RANK = 2 ] && exit 7
    sleep 0.$((8 - $RANK * 4)); exit 3)"));
  for (const char* line : {"[rank 0] ready", "[rank 1] ready", "[rank 2] ready"}) {
    ASSERT_TRUE(launcher.wait_for_output(line));
  }
  const pid_t supervisor = launcher.supervisor();
  ASSERT_GT(supervisor, 0);
  stop_process(supervisor);
  std::ofstream(launcher.file("go")) << "now";
  // Zombies have no environment: the front and the supervisor are left.
  EXPECT_TRUE(eventually([&] { return launcher.processes().size() == 2; }));
  kill(supervisor, SIGCONT);
  EXPECT_EQ(launcher.wait(), 7);
  expect_parts(report_of(launcher), {"because of rank 2", "exited with code 7"});
}

TEST(LauncherFailure, ShowsTheExceptionAndTheLastTwentyLines) {
  Launcher launcher(shell_ranks(1, R"(
    seq 1 30
    sleep 0.1
    echo "terminate called after throwing an instance of 'std::runtime_error'" >&2
    echo "  what():  expected 4 heads, found 3" >&2
    kill -ABRT $$)"));
  EXPECT_EQ(launcher.wait(), 128 + SIGABRT);
  const std::string report = report_of(launcher);
  expect_parts(report, {"SIGABRT (Aborted)", "error: expected 4 heads, found 3", "| 30\n", "| 13\n"});
  EXPECT_EQ(report.find("| 12\n"), std::string::npos);
}

TEST(LauncherFailure, ShowsTheMessageOfATesseraProgram) {
  Launcher launcher(shell_ranks(1, "echo 'tessera: no such axis' >&2; exit 2"));
  EXPECT_EQ(launcher.wait(), 2);
  expect_parts(report_of(launcher), {"error: no such axis", "ConfigError"});
}

TEST(LauncherFailure, EndsWithTheCodeOrTheSignalOfTheFirst) {
  Launcher code(shell_ranks(2, "[ $RANK = 1 ] && exit 70; sleep 60"));
  Launcher killed(shell_ranks(2, "[ $RANK = 1 ] && kill -KILL $$; sleep 60"));
  Launcher crashed(shell_ranks(2, "[ $RANK = 1 ] && kill -SEGV $$; sleep 60"));
  EXPECT_EQ(code.wait(), 70);
  EXPECT_EQ(killed.wait(), 137);
  EXPECT_EQ(crashed.wait(), 139);
  expect_parts(report_of(code), {"InternalError"});
  expect_parts(report_of(killed), {"was ended by SIGKILL", "memory"});
  expect_parts(report_of(crashed), {"was ended by SIGSEGV (Segmentation fault)", "it wrote nothing"});
}

TEST(LauncherFailure, TellsTheOthersToEndBeforeItKillsThem) {
  Launcher launcher(shell_ranks(3,
                                R"(
    [ $RANK = 0 ] && { sleep 0.3; exit 9; }
    [ $RANK = 1 ] && trap 'echo saved; exit 0' TERM
    [ $RANK = 2 ] && trap '' TERM
    while true; do sleep 0.05; done)",
                                {"--grace", "1s"}));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(launcher.wait(), 9);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(launcher.output(), "[rank 1] saved\n");
  expect_parts(report_of(launcher),
               {"rank 1 (pid", "exited with code 0", "rank 2 (pid", "did not end within 1 s of SIGTERM"});
  launcher.expect_no_processes();
}

TEST(LauncherFailure, WakesAStoppedRankToEndIt) {
  Launcher launcher(shell_ranks(2, R"(
    [ $RANK = 0 ] && { sleep 0.3; exit 9; }
    trap 'echo bye; exit 0' TERM
    kill -STOP $$)"));
  EXPECT_EQ(launcher.wait(), 9);
  EXPECT_EQ(launcher.output(), "[rank 1] bye\n");
}

TEST(LauncherFailure, DoesNotCallAFinishedRankAVictim) {
  Launcher launcher(shell_ranks(2, "[ $RANK = 1 ] && exit 0; sleep 0.3; exit 4"));
  EXPECT_EQ(launcher.wait(), 4);
  expect_parts(report_of(launcher), {"because of rank 0", "rank 1 (pid", "had finished"});
}

}  // namespace
}  // namespace tessera::testing
