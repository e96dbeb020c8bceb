#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>

#include "launcher.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

using Lines = std::vector<std::string>;

constexpr const char* kWaiting = "; echo ready; while true; do sleep 0.02; done";

void wait_until_ready(const Launcher& launcher, int num_ranks) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    ASSERT_TRUE(launcher.wait_for_output("[rank " + std::to_string(rank) + "] ready"));
  }
}

TEST(LauncherSignal, ReachesTheRanks) {
  for (const auto& [signal, name, code] :
       {std::tuple(SIGINT, "INT", 130), std::tuple(SIGTERM, "TERM", 143), std::tuple(SIGHUP, "HUP", 129)}) {
    Launcher launcher(shell_ranks(2, "trap 'echo got " + std::string(name) + "; exit 0' " + name + kWaiting));
    wait_until_ready(launcher, 2);
    launcher.send(signal);
    EXPECT_EQ(launcher.wait(), code);
    ASSERT_EQ(launcher.output_lines().size(), 4U) << launcher.output();
    EXPECT_EQ(launcher.output_lines()[0], "[rank 0] got " + std::string(name));
    EXPECT_EQ(launcher.output_lines()[2], "[rank 1] got " + std::string(name));
    expect_parts(launcher.errors(), {"ended by SIG" + std::string(name)});
    // Asked for, so no failure.
    EXPECT_EQ(launcher.errors().find("failed"), std::string::npos) << launcher.errors();
    launcher.expect_no_processes();
  }
}

TEST(LauncherSignal, KillsAtTheSecond) {
  Launcher launcher(shell_ranks(2, std::string("trap 'echo again' INT TERM") + kWaiting, {"--grace", "1h"}));
  wait_until_ready(launcher, 2);
  launcher.send(SIGINT);
  ASSERT_TRUE(launcher.wait_for_output("[rank 1] again"));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(std::chrono::seconds(10)), 130);
  expect_parts(launcher.errors(), {"2 ranks had to be killed"});
  launcher.expect_no_processes();
}

TEST(LauncherSignal, TakesAnEchoOfTheFirstForTheFirst) {
  Launcher launcher(shell_ranks(1, std::string("trap 'sleep 0.3; echo saved; exit 0' TERM") + kWaiting));
  wait_until_ready(launcher, 1);
  for (int i = 0; i < 10; ++i) {
    launcher.send(SIGTERM);
    usleep(1000);  // or the kernel makes them one
  }
  EXPECT_EQ(launcher.wait(), 143);
  expect_parts(launcher.output(), {"[rank 0] saved"});
}

TEST(LauncherSignal, KillsAfterTheGrace) {
  Launcher launcher(shell_ranks(2, std::string("trap '' TERM") + kWaiting, {"--grace", "200ms"}));
  wait_until_ready(launcher, 2);
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(std::chrono::seconds(10)), 143);
  launcher.expect_no_processes();
}

TEST(LauncherSignal, StartsNothingAgain) {
  Launcher launcher(shell_ranks(1, std::string("true") + kWaiting, {"--max-restarts", "5"}));
  wait_until_ready(launcher, 1);
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
  EXPECT_EQ(launcher.output(), "[rank 0] ready\n");
}

char state_of(pid_t process) {
  const std::string stat = text_of_file("/proc/" + std::to_string(process) + "/stat");
  return stat.empty() ? '?' : stat[stat.rfind(") ") + 2];
}

TEST(LauncherSignal, StopsAndGoesOnTogetherWithItsRanks) {
  Launcher launcher(shell_ranks(1, "echo $$ >$TEST_FOLDER/pid; echo ready; while true; do :; done"));
  wait_until_ready(launcher, 1);
  const pid_t rank = std::stoi(text_of_file(launcher.file("pid")));
  launcher.send(SIGTSTP);
  EXPECT_TRUE(eventually([&] { return state_of(rank) == 'T' && state_of(launcher.front()) == 'T'; }));
  launcher.send(SIGCONT);
  EXPECT_TRUE(eventually([&] { return state_of(rank) == 'R' && state_of(launcher.front()) == 'S'; }));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait(), 143);
}

TEST(LauncherSignal, IgnoresWhatItsParentIgnores) {
  // As nohup does.
  Launcher launcher(shell_ranks(1,
                                "trap '' HUP; \"$TESSERA\" run -- sh -c 'echo ready; sleep 0.5; echo done' & "
                                "child=$!; sleep 0.3; kill -HUP $child; wait $child"),
                    {{"TESSERA", TESSERA_CLI}});
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  expect_parts(launcher.output(), {"done"});
}

}  // namespace
}  // namespace tessera::testing
