#include <gtest/gtest.h>

#include "launcher.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

TEST(LauncherStore, IsWhereTheRanksMeet) {
  Launcher launcher({"--nproc-per-node", "3", TESSERA_TEST_RANK, "meet"});
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  expect_parts(launcher.output(), {"[rank 0] met 3, port agreed", "[rank 1] met 3", "[rank 2] met 3"});
  launcher.expect_no_processes();
}

TEST(LauncherStore, OutlivesARestartButNotTheKeysOfTheGeneration) {
  Launcher launcher({"--nproc-per-node", "2", "--max-restarts", "1", TESSERA_TEST_RANK, "meet", "0"});
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  expect_parts(launcher.output(), {"[rank 0] left of generation 0: 0", "[rank 1] left of generation 0: 0"});
  launcher.expect_no_processes();
}

TEST(LauncherStore, HasANewSecretForEachJob) {
  const std::string script = "echo $TESSERA_STORE $TESSERA_SECRET $TESSERA_SECRET_FILE. $TESSERA_LOG_DIR.";
  Launcher one(shell_ranks(1, script), {{"TESSERA_SECRET_FILE", "x"}, {"TESSERA_LOG_DIR", "y"}});
  Launcher other(shell_ranks(1, script));
  EXPECT_EQ(one.wait() + other.wait(), 0);
  expect_parts(one.output(), {"[rank 0] 127.0.0.1:", " . ."});
  EXPECT_NE(one.output(), other.output());
  EXPECT_GT(one.output().size(), 64U + 20U);
}

}  // namespace
}  // namespace tessera::testing
