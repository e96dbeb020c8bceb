#include <gtest/gtest.h>

#include <sys/wait.h>

#include "launch/process.h"
#include "launcher.h"
#include "support/screen.h"

namespace tessera::testing {
namespace {

using Lines = std::vector<std::string>;

/// `tessera run` on a terminal of 40 columns, with one rank that runs `script`. There `wait_for N` waits for go(N).
class OnScreen {
 public:
  explicit OnScreen(const std::string& script) {
    auto environment = launch::current_environment();
    environment["TERM"] = "xterm";
    environment["NO_COLOR"] = "1";
    environment["TEST_FOLDER"] = folder_.path();
    launch::ProcessSpec spec;
    spec.program = TESSERA_CLI;
    const std::string waiting = "wait_for() { until [ -e \"$TEST_FOLDER/$1\" ]; do sleep 0.02; done; }; ";
    spec.arguments = {"tessera", "run", "sh", "-c", waiting + script};
    spec.environment = launch::entries_of(environment);
    spec.output = screen_.descriptor();
    spec.error = screen_.descriptor();
    process_ = launch::start_process(spec).process;
  }

  void go(int number) const { folder_.write(std::to_string(number), "", 0600); }
  std::string bytes() { return screen_.bytes(); }
  /// Whether what is seen becomes just this.
  bool shows(const Lines& lines) {
    return eventually([&] { return screen_.lines() == lines; });
  }
  int exit_code() {
    int status = -1;
    EXPECT_TRUE(eventually([&] {
      screen_.bytes();  // so that the terminal never fills
      return waitpid(process_, &status, WNOHANG) == process_;
    }));
    return launch::exit_code_of(status);
  }

 private:
  TemporaryFolder folder_;
  Screen screen_{40};
  pid_t process_ = -1;
};

TEST(LauncherProgress, StaysBelowWhatRanksPrint) {
  OnScreen run(
      "echo 'step 1' >$TESSERA_PROGRESS; wait_for 1; echo out; wait_for 2; echo err >&2; wait_for 3;"
      "echo 'step 2' >$TESSERA_PROGRESS; wait_for 4; echo last");
  EXPECT_TRUE(run.shows({"step 1"}));
  run.go(1);
  EXPECT_TRUE(run.shows({"[rank 0] out", "step 1"}));
  run.go(2);
  EXPECT_TRUE(run.shows({"[rank 0] out", "[rank 0] err", "step 1"}));
  run.go(3);
  EXPECT_TRUE(run.shows({"[rank 0] out", "[rank 0] err", "step 2"}));
  run.go(4);
  EXPECT_EQ(run.exit_code(), 0);
  EXPECT_TRUE(run.shows({"[rank 0] out", "[rank 0] err", "[rank 0] last", ""})) << "the line goes at the end";
}

TEST(LauncherProgress, GoesBeforeTheReportOfAFailure) {
  OnScreen run("echo 'step 1' >$TESSERA_PROGRESS; wait_for 1; exit 3");
  EXPECT_TRUE(run.shows({"step 1"}));
  run.go(1);
  EXPECT_EQ(run.exit_code(), 3);
  const std::string bytes = run.bytes();
  EXPECT_EQ(seen(bytes).front().find("tessera run: the job failed because of"), 0U) << bytes;
}

TEST(LauncherProgress, IsCutToTheWidthOfTheTerminal) {
  OnScreen run("echo \"$TESSERA_PROGRESS_WIDTH\"; echo " + std::string(60, 'x') + " >$TESSERA_PROGRESS; wait_for 1");
  EXPECT_TRUE(run.shows({"[rank 0] 39", std::string(39, 'x')}));
  run.go(1);
  EXPECT_EQ(run.exit_code(), 0);
}

TEST(LauncherProgress, IsNotOfferedWhereNobodyLooks) {
  Launcher launcher(shell_ranks(2, "echo \"${TESSERA_PROGRESS-none}\""), {{"TESSERA_PROGRESS", "/of/an/outer/job"}});
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.output_lines(), (Lines{"[rank 0] none", "[rank 1] none"}));
}

}  // namespace
}  // namespace tessera::testing
