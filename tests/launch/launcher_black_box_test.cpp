#include <tessera/flight/hang_report.h>

#include <gtest/gtest.h>

#include <csignal>

#include "launcher.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

/// Three ranks that record; rank 1 ends as `how` says while the others wait for it.
std::vector<std::string> recording(const std::string& how, std::vector<std::string> options = {}) {
  options.insert(options.end(), {"--nproc-per-node", "3", TESSERA_TEST_RANK, "record", "1", how});
  return options;
}

bool mentions_calls(const Launcher& launcher) { return launcher.errors().find("all_reduce #2") != std::string::npos; }

TEST(LauncherBlackBox, TellsWhatTheOthersWaitedForWhenARankIsKilled) {
  const TemporaryFolder meeting;
  Launcher launcher(recording("kill"), {{"MEETING_FOLDER", meeting.path()}});
  EXPECT_EQ(launcher.wait(), 137);
  EXPECT_TRUE(mentions_calls(launcher)) << launcher.errors();
  expect_parts(launcher.errors(),
               {"the job failed because of rank 1", "rank 1 is dead: ended by SIGKILL", "was last in all_reduce #1",
                "ranks 0,2 wait for it in all_reduce #2 of group world"});
  EXPECT_LT(launcher.errors().find("the job failed"), launcher.errors().find("rank 1 is dead"));
  launcher.expect_no_processes();
}

TEST(LauncherBlackBox, NamesTheCauseThatTheRanksFoundBeforeTheRankThatEnded) {
  const TemporaryFolder meeting;
  Launcher launcher(recording("blame"), {{"MEETING_FOLDER", meeting.path()}});
  EXPECT_EQ(launcher.wait(), 3);
  expect_parts(launcher.errors(), {"the job failed because rank 0 ate the batch", "rank 1 (pid ",
                                   " was the first to end: exited with code 3"});
  // The ranks have reported what they found; a second report, by one who knows less, would only hide it.
  EXPECT_EQ(launcher.errors().find("HANG"), std::string::npos) << launcher.errors();
}

TEST(LauncherBlackBox, IsKeptBesideTheLogsOfItsAttempt) {
  const TemporaryFolder meeting;
  const TemporaryFolder logs;
  Launcher launcher(recording("3", {"--max-restarts", "1", "--log-dir", logs.path()}),
                    {{"MEETING_FOLDER", meeting.path()}});
  EXPECT_EQ(launcher.wait(), 3);
  for (const char* attempt : {"attempt_0", "attempt_1"}) {
    const auto report = flight::hang_report_from_json(text_of_file(logs.path() / attempt / "hang_node_0.json"));
    ASSERT_EQ(report.ranks.size(), 3U);
    EXPECT_EQ(report.ranks[1].condition, flight::RankCondition::kDead);
    EXPECT_EQ(report.ranks[1].detail, "exit code 3");
    EXPECT_EQ(report.ranks[2].condition, flight::RankCondition::kWaiting);
  }
}

TEST(LauncherBlackBox, KnowsThatARankIsStopped) {
  const TemporaryFolder meeting;
  Launcher launcher(shell_ranks(2, "[ $RANK = 1 ] || exec " TESSERA_TEST_RANK " record 1 wait\n"
                                   "while [ ! -e $MEETING_FOLDER/waits_0_0 ]; do sleep 0.01; done\n"
                                   "echo $$; while [ ! -e $MEETING_FOLDER/go ]; do sleep 0.01; done; exit 5"),
                    {{"MEETING_FOLDER", meeting.path()}});
  ASSERT_TRUE(launcher.wait_for_output("[rank 0] waits"));
  for (const pid_t process : launcher.processes()) {
    const std::string command = text_of_file("/proc/" + std::to_string(process) + "/cmdline");
    if (command.starts_with(TESSERA_TEST_RANK)) stop_process(process);
  }
  std::ofstream(meeting.file("go")) << "now";
  EXPECT_EQ(launcher.wait(), 5);
  expect_parts(launcher.errors(), {"rank 0 is stopped", "rank 1 is dead: exit code 5"});
  EXPECT_TRUE(mentions_calls(launcher)) << launcher.errors();
}

TEST(LauncherBlackBox, IsNotMentionedWhenNobodyRecordedACall) {
  const TemporaryFolder logs;
  Launcher launcher(shell_ranks(2, "exit 3", {"--log-dir", logs.path()}));
  EXPECT_EQ(launcher.wait(), 3);
  EXPECT_EQ(launcher.errors().find("HANG"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(logs.path() / "attempt_0/hang_node_0.json"));
}

TEST(LauncherBlackBox, IsNotMentionedWhenASignalEndsTheJob) {
  const TemporaryFolder meeting;
  Launcher launcher(recording("wait"), {{"MEETING_FOLDER", meeting.path()}});
  ASSERT_TRUE(launcher.wait_for_output("[rank 0] waits"));
  ASSERT_TRUE(launcher.wait_for_output("[rank 2] waits"));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
  EXPECT_FALSE(mentions_calls(launcher)) << launcher.errors();
}

}  // namespace
}  // namespace tessera::testing
