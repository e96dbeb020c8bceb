#include <tessera/core/descriptor.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "launch/process.h"
#include "launcher.h"

namespace tessera::testing {
namespace {

using Lines = std::vector<std::string>;

TEST(LauncherOutput, PutsTheRankBeforeEveryLineAndKeepsTheStreamsApart) {
  Launcher launcher(shell_ranks(2, "echo out; echo; echo err >&2"));
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.output_lines(), (Lines{"[rank 0]", "[rank 0] out", "[rank 1]", "[rank 1] out"}));
  EXPECT_NE(launcher.errors().find("[rank 0] err\n"), std::string::npos);
  EXPECT_NE(launcher.errors().find("[rank 1] err\n"), std::string::npos);
}

TEST(LauncherOutput, EndsALastLineThatHasNoEnd) {
  Launcher launcher(shell_ranks(1, "printf 'half a'; sleep 0.1; printf ' line'"));
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.output(), "[rank 0] half a line\n");
}

TEST(LauncherOutput, CutsLinesThatHaveNoEnd) {
  Launcher launcher(shell_ranks(1, "head -c 150000 /dev/zero | tr '\\0' x; echo; echo next"));
  EXPECT_EQ(launcher.wait(), 0);
  std::vector<std::size_t> sizes;
  for (const std::string& line : launcher.output_lines()) sizes.push_back(line.size());
  std::sort(sizes.begin(), sizes.end());
  const std::size_t prefix = std::string("[rank 0] ").size();
  EXPECT_EQ(sizes, (std::vector<std::size_t>{prefix + 4, prefix + 150000 - 2 * 65536, prefix + 65536, prefix + 65536}));
}

TEST(LauncherOutput, KeepsManyLinesOfManyRanksWhole) {
  Launcher launcher(shell_ranks(4, "seq -f \"$RANK-%05g\" 20000"));
  EXPECT_EQ(launcher.wait(), 0);
  const Lines lines = launcher.output_lines();
  ASSERT_EQ(lines.size(), 80000U);
  EXPECT_EQ(lines.front(), "[rank 0] 0-00001");
  EXPECT_EQ(lines.back(), "[rank 3] 3-20000");
  EXPECT_EQ(std::adjacent_find(lines.begin(), lines.end()), lines.end());
}

TEST(LauncherOutput, KeepsWhatRanksWriteInFiles) {
  const TemporaryFolder logs;
  Launcher launcher(shell_ranks(2, "echo out $RANK; printf err >&2", {"--log-dir", logs.file("deep/er")}));
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  for (const char* rank : {"0", "1"}) {
    const auto folder = logs.path() / "deep/er/attempt_0" / ("rank_" + std::string(rank));
    EXPECT_EQ(text_of_file(folder / "stdout.log"), "out " + std::string(rank) + "\n");
    EXPECT_EQ(text_of_file(folder / "stderr.log"), "err");
  }
  EXPECT_EQ(launcher.output_lines(), (Lines{"[rank 0] out 0", "[rank 1] out 1"}));
}

TEST(LauncherOutput, KeepsOffTheConsoleWhatTeeLeavesOut) {
  for (int tee = 0; tee <= 3; ++tee) {
    const TemporaryFolder logs;
    Launcher launcher(
        shell_ranks(1, "echo out; echo err >&2", {"--log-dir", logs.path(), "--tee", std::to_string(tee)}));
    EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
    EXPECT_EQ(launcher.output(), (tee & 1) != 0 ? "[rank 0] out\n" : "") << tee;
    EXPECT_EQ(launcher.errors(), (tee & 2) != 0 ? "[rank 0] err\n" : "") << tee;
    EXPECT_EQ(text_of_file(logs.path() / "attempt_0/rank_0/stdout.log"), "out\n");
    EXPECT_EQ(text_of_file(logs.path() / "attempt_0/rank_0/stderr.log"), "err\n");
  }
}

TEST(LauncherOutput, EndsWithFourWhenTheLogsCannotBeMade) {
  Launcher launcher(shell_ranks(1, "true", {"--log-dir", "/proc/no/such"}));
  EXPECT_EQ(launcher.wait(), 4);
  EXPECT_NE(launcher.errors().find("/proc/no/such"), std::string::npos);
}

/// What a launcher writes to a terminal.
std::string on_terminal(const std::string& no_color) {
  int controller = -1;
  int terminal = -1;
  EXPECT_EQ(openpty(&controller, &terminal, nullptr, nullptr, nullptr), 0);
  const Descriptor read_end(controller);
  Descriptor write_end(terminal);
  auto environment = launch::current_environment();
  environment["TERM"] = "xterm";
  environment["NO_COLOR"] = no_color;
  launch::ProcessSpec spec;
  spec.program = TESSERA_CLI;
  spec.arguments = {"tessera", "run", "echo", "hi"};
  spec.environment = launch::entries_of(environment);
  spec.output = write_end.get();
  const pid_t process = launch::start_process(spec).process;
  write_end.reset();
  std::string text;
  std::array<char, 256> block{};
  for (ssize_t count = 0; (count = read(read_end.get(), block.data(), block.size())) > 0;) {
    text.append(block.data(), static_cast<std::size_t>(count));
  }
  waitpid(process, nullptr, 0);
  return text;
}

TEST(LauncherOutput, ColoursTheRankOnATerminal) {
  EXPECT_EQ(on_terminal(""), "\033[36m[rank 0]\033[0m hi\r\n");
  EXPECT_EQ(on_terminal("1"), "[rank 0] hi\r\n");
}

/// A pipe whose reader is `read_end`, that is closed or not read at all.
struct Unread {
  Unread() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    read_end = Descriptor(ends[0]);
    write_end = Descriptor(ends[1]);
  }
  pid_t start(const std::vector<std::string>& arguments) const {
    launch::ProcessSpec spec;
    spec.program = TESSERA_CLI;
    spec.arguments = {"tessera", "run"};
    spec.arguments.insert(spec.arguments.end(), arguments.begin(), arguments.end());
    spec.environment = launch::entries_of(launch::current_environment());
    spec.output = write_end.get();
    return launch::start_process(spec).process;
  }
  Descriptor read_end;
  Descriptor write_end;
};

bool ends(pid_t process, int& status) {
  return eventually([&] { return waitpid(process, &status, WNOHANG) == process; });
}

TEST(LauncherOutput, TellsRanksThatNobodyReads) {
  Unread pipe;
  pipe.read_end.reset();
  const pid_t process = pipe.start({"yes"});
  int status = 0;
  ASSERT_TRUE(ends(process, status));
  EXPECT_EQ(launch::exit_code_of(status), 128 + SIGPIPE);
}

/// Full after 64 KiB, and the launcher's queue soon after.
void wait_until_full(const Unread& pipe) {
  ASSERT_TRUE(eventually([&] {
    pollfd entry{pipe.write_end.get(), POLLOUT, 0};
    return poll(&entry, 1, 0) == 0;
  }));
}

TEST(LauncherOutput, EndsAfterGraceWhileNobodyReads) {
  const Unread pipe;
  const pid_t process = pipe.start({"--grace", "300ms", "yes"});
  wait_until_full(pipe);
  kill(process, SIGTERM);
  int status = 0;
  ASSERT_TRUE(ends(process, status));
  EXPECT_EQ(launch::exit_code_of(status), 143);
}

TEST(LauncherOutput, EndsAtOnceWithASecondSignalWhileNobodyReads) {
  const Unread pipe;
  const pid_t process = pipe.start({"--grace", "10min", "yes"});
  wait_until_full(pipe);
  int status = 0;
  // Again and again: two signals of a kind that come together are one.
  ASSERT_TRUE(eventually([&] {
    kill(process, SIGTERM);
    return waitpid(process, &status, WNOHANG) == process;
  }));
  EXPECT_EQ(launch::exit_code_of(status), 143);
}

}  // namespace
}  // namespace tessera::testing
