#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <set>

#include <tessera/launch/machine.h>
#include "launcher.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

using Lines = std::vector<std::string>;

TEST(LauncherEnvironment, TellsEachRankItsPlace) {
  Launcher launcher(shell_ranks(2,
                                "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK "
                                "$MASTER_ADDR $TORCHELASTIC_RESTART_COUNT $TESSERA_RUN"));
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  EXPECT_EQ(launcher.output_lines(),
            (Lines{"[rank 0] 0 0 2 2 0 0 127.0.0.1 0 1", "[rank 1] 1 1 2 2 0 0 127.0.0.1 0 1"}));
}

TEST(LauncherEnvironment, OverridesTheVariablesOfAnotherLauncherAroundIt) {
  Launcher launcher(shell_ranks(1, "echo $RANK $TORCHELASTIC_USE_AGENT_STORE $TORCHELASTIC_RUN_ID."),
                    {{"RANK", "7"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "outer"}});
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.output(), "[rank 0] 0 False .\n");
}

TEST(LauncherEnvironment, SharesTheCoresAmongThreads) {
  Launcher alone(shell_ranks(1, "echo $OMP_NUM_THREADS"));
  Launcher many(shell_ranks(64, "[ $RANK != 63 ] || echo $OMP_NUM_THREADS"));
  Launcher own(shell_ranks(1, "echo $OMP_NUM_THREADS"), {{"OMP_NUM_THREADS", "17"}});
  EXPECT_EQ(alone.wait() + many.wait() + own.wait(), 0);
  EXPECT_EQ(alone.output(), "[rank 0] " + std::to_string(launch::num_allowed_cores()) + "\n");
  EXPECT_EQ(many.output(), "[rank 63] 1\n");
  EXPECT_EQ(own.output(), "[rank 0] 17\n");
}

TEST(LauncherEnvironment, PassesArgumentsOnUntouched) {
  // Flags behind the program are the program's.
  Launcher launcher({"--nproc_per_node=1", "printf", "%s|", "--max-restarts", "a b", "--", "$RANK", ""});
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  EXPECT_EQ(launcher.output(), "[rank 0] --max-restarts|a b|--|$RANK||\n");
}

TEST(LauncherEnvironment, GivesRanksAnEmptyInput) {
  Launcher launcher(shell_ranks(2, "cat; echo end"));
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.output_lines(), (Lines{"[rank 0] end", "[rank 1] end"}));
}

TEST(LauncherEnvironment, GivesConcurrentJobsDifferentPorts) {
  const TemporaryFolder folder;
  const std::string go = folder.file("go");
  std::vector<std::unique_ptr<Launcher>> launchers;
  for (int i = 0; i < 20; ++i) {
    launchers.push_back(std::make_unique<Launcher>(
        shell_ranks(1, "echo $MASTER_PORT; while [ ! -e " + go + " ]; do sleep 0.02; done")));
  }
  std::set<std::string> ports;
  for (const auto& launcher : launchers) {
    ASSERT_TRUE(launcher->wait_for_output("\n"));
    ports.insert(launcher->output());
  }
  std::ofstream(go) << "now";
  for (const auto& launcher : launchers) EXPECT_EQ(launcher->wait(), 0);
  EXPECT_EQ(ports.size(), launchers.size());
}

TEST(LauncherEnvironment, LetsTheUserChooseTheRendezvous) {
  Launcher refused(shell_ranks(1, "true", {"--rdzv_endpoint", "192.0.2.1:29500"}));
  EXPECT_EQ(refused.wait(), 2);
  expect_parts(refused.errors(), {"192.0.2.1:29500", "an address of this host"});
  Launcher chosen(shell_ranks(1, "echo $MASTER_ADDR", {"--master-addr", "localhost"}));
  EXPECT_EQ(chosen.wait(), 0) << chosen.errors();
  EXPECT_EQ(chosen.output(), "[rank 0] localhost\n");
}

}  // namespace
}  // namespace tessera::testing
