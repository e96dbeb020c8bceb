#include <gtest/gtest.h>

#include <sys/wait.h>

#include "launch/environment.h"
#include "launch/process.h"
#include "launcher.h"
#include "support/screen.h"

namespace tessera::testing {
namespace {

using Lines = std::vector<std::string>;

/// What `tessera run` writes to a terminal of 40 columns while one rank runs `script`.
std::string on_screen(const std::string& script) {
  Screen screen(40);
  auto environment = launch::current_environment();
  environment["TERM"] = "xterm";
  environment["NO_COLOR"] = "1";
  launch::ProcessSpec spec;
  spec.program = TESSERA_CLI;
  spec.arguments = {"tessera", "run", "sh", "-c", script};
  spec.environment = launch::entries_of(environment);
  spec.output = screen.descriptor();
  spec.error = screen.descriptor();
  const pid_t process = launch::start_process(spec).process;
  int status = -1;
  EXPECT_TRUE(eventually([&] {
    screen.bytes();  // so that the terminal never fills
    return waitpid(process, &status, WNOHANG) == process;
  }));
  EXPECT_EQ(status, 0);
  return screen.bytes();
}

TEST(LauncherProgress, StaysBelowWhatRanksPrint) {
  const std::string bytes = on_screen(
      "echo 'step 1' >$TESSERA_PROGRESS; sleep 0.5; echo out; echo err >&2; sleep 0.5;"
      "echo 'step 2' >$TESSERA_PROGRESS; sleep 0.5; echo last");
  const auto before_out = bytes.find("out");
  ASSERT_NE(before_out, std::string::npos);
  EXPECT_EQ(seen(bytes.substr(0, before_out)), (Lines{"[rank 0] "})) << "the line gives way";
  const auto before_last = bytes.find("last");
  const std::string shown = bytes.substr(0, bytes.rfind("\033[K", before_last));
  const Lines lines = seen(shown.substr(0, shown.rfind('\r')));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines.back(), "step 2") << "and comes back";
  EXPECT_EQ(seen(bytes).back(), "") << "and is gone at the end";
  EXPECT_EQ(seen(bytes)[2], "[rank 0] last");
}

TEST(LauncherProgress, IsCutToTheWidthOfTheTerminal) {
  const std::string bytes =
      on_screen("echo \"$TESSERA_PROGRESS_WIDTH\"; echo " + std::string(60, 'x') + " >$TESSERA_PROGRESS; sleep 0.5");
  EXPECT_NE(bytes.find("[rank 0] 39\r\n"), std::string::npos);
  EXPECT_NE(bytes.find("\r" + std::string(39, 'x') + "\033[K"), std::string::npos);
}

TEST(LauncherProgress, IsNotOfferedWhereNobodyLooks) {
  Launcher launcher(shell_ranks(2, "echo \"${TESSERA_PROGRESS-none}\""), {{"TESSERA_PROGRESS", "/of/an/outer/job"}});
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.output_lines(), (Lines{"[rank 0] none", "[rank 1] none"}));
}

}  // namespace
}  // namespace tessera::testing
