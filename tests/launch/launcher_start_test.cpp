#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "launcher.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

double seconds_of_nothing() {
  const auto start = std::chrono::steady_clock::now();
  Launcher launcher({"--", "true"});
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(LauncherStart, TakesMilliseconds) {
  std::vector<double> samples;
  for (int i = 0; i < 21; ++i) samples.push_back(seconds_of_nothing());
  std::sort(samples.begin(), samples.end());
  const double median = samples[samples.size() / 2];
  std::printf("tessera run -- true: median %.1f ms, %.1f to %.1f\n", median * 1e3, samples.front() * 1e3,
              samples.back() * 1e3);
  EXPECT_LT(median, 0.1);
}

TEST(LauncherStart, RefusesAProgramThatIsNotThere) {
  Launcher launcher({"no_such_program"});
  EXPECT_EQ(launcher.wait(), 127);
  expect_parts(launcher.errors(), {"no_such_program", "PATH"});
  EXPECT_EQ(launcher.output(), "");
}

TEST(LauncherStart, RefusesAFileThatIsNoProgram) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("train.py")) << "print()\n";
  Launcher launcher({folder.file("train.py")});
  EXPECT_EQ(launcher.wait(), 126);
  expect_parts(launcher.errors(), {"train.py is not executable", "python3"});
}

TEST(LauncherStart, SaysThatAScriptHasNoInterpreter) {
  const TemporaryFolder folder;
  const std::string script = folder.file("script");
  for (const auto& [text, code] : {std::pair("echo hi\n", 126), std::pair("#!/no/such/interpreter\n", 127)}) {
    std::ofstream(script) << text;
    std::filesystem::permissions(script, std::filesystem::perms::owner_all);
    Launcher launcher({"--nproc-per-node", "3", script});
    EXPECT_EQ(launcher.wait(), code) << launcher.errors();
    expect_parts(launcher.errors(), {script + " cannot be started", "interpreter"});
  }
}

TEST(LauncherStart, EndsWithTwoForAWrongCommandLine) {
  const std::vector<std::vector<std::string>> wrong = {
      {}, {"--"}, {"--no-such-flag", "true"}, {"--tee", "0", "true"}, {"--nnodes", "2", "true"}, {"--grace"}};
  for (const auto& arguments : wrong) {
    Launcher launcher(arguments);
    EXPECT_EQ(launcher.wait(), 2) << launcher.errors();
    EXPECT_NE(launcher.errors(), "");
  }
}

TEST(LauncherStart, PrintsItsOptions) {
  Launcher launcher({"--print-config", "--nproc_per_node", "3", "--grace=90s"});
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  expect_parts(launcher.output(), {"nproc_per_node = \"3\"\n", "grace = \"90s\"\n", "bind = \"auto\"\n"});
}

TEST(LauncherStart, ReadsItsOptionsFromAFile) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("run.toml")) << "nproc_per_node = \"2\"\n";
  Launcher launcher({"--config", folder.file("run.toml"), "sh", "-c", "echo of $WORLD_SIZE"});
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  EXPECT_EQ(launcher.output_lines(), (std::vector<std::string>{"[rank 0] of 2", "[rank 1] of 2"}));
}

}  // namespace
}  // namespace tessera::testing
