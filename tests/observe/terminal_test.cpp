#include "observe/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>

#include "support/screen.h"

namespace tessera::observe {
namespace {

using Lines = std::vector<std::string>;
using ::tessera::testing::Screen;

TEST(Terminal, RewritesTheLineInPlace) {
  Screen screen(60);
  Terminal terminal(Terminal::Kind::kOwn, screen.duplicate());
  EXPECT_EQ(terminal.width(), 59U);
  terminal.draw("step 100 of many");
  terminal.draw("step 101");
  EXPECT_EQ(screen.lines(), (Lines{"step 101"}));
  terminal.draw("step 101");
  EXPECT_EQ(screen.bytes().find("step 101"), screen.bytes().rfind("step 101")) << "the same line is drawn once";
}

TEST(Terminal, PrintsAboveTheLine) {
  Screen screen(60);
  Terminal terminal(Terminal::Kind::kOwn, screen.duplicate());
  terminal.draw("a long line of progress");
  terminal.print(screen.descriptor(), "saved");
  terminal.print(screen.descriptor(), "again");
  EXPECT_EQ(screen.lines(), (Lines{"saved", "again", "a long line of progress"}));
}

TEST(Terminal, LeavesTheLineAndBeginsANewOne) {
  Screen screen(60);
  {
    Terminal terminal(Terminal::Kind::kOwn, screen.duplicate());
    terminal.draw("step 3");
    terminal.leave();
    terminal.leave();
    terminal.print(screen.descriptor(), "done");
  }
  EXPECT_EQ(screen.lines(), (Lines{"step 3", "done", ""}));
}

TEST(Terminal, LeavesTheLineWhenItGoes) {
  Screen screen(60);
  {
    Terminal(Terminal::Kind::kOwn, screen.duplicate()).draw("step 3");
  }
  EXPECT_EQ(screen.lines(), (Lines{"step 3", ""}));
}

TEST(Terminal, ShowsANoteBehindTheLine) {
  Screen screen(40);
  Terminal terminal(Terminal::Kind::kOwn, screen.duplicate());
  terminal.note("saving");
  EXPECT_EQ(screen.lines(), (Lines{"saving"}));
  EXPECT_EQ(terminal.width(), 39U - 8U);
  terminal.draw("step 3");
  EXPECT_EQ(screen.lines(), (Lines{"step 3  saving"}));
  terminal.note("saving more than a moment ago, much more");
  EXPECT_EQ(screen.lines(), (Lines{"saving more than a moment ago, much mor"})) << "the room is the note's";
  terminal.note("");
  EXPECT_EQ(screen.lines(), (Lines{"step 3"}));
}

TEST(Terminal, CutsTheLineBetweenItsParts) {
  Screen screen(31);
  Terminal terminal(Terminal::Kind::kOwn, screen.duplicate());
  terminal.draw("step 3  loss 2.5000  mem 40 MB");
  terminal.note("saving");
  EXPECT_EQ(screen.lines(), (Lines{"step 3  loss 2.5000  saving"}));
}

TEST(Terminal, LeavesTheLineWithoutItsNote) {
  Screen screen(60);
  Terminal terminal(Terminal::Kind::kOwn, screen.duplicate());
  terminal.draw("step 3");
  terminal.note("saving");
  terminal.leave();
  terminal.note("loading");
  terminal.leave();
  EXPECT_EQ(screen.lines(), (Lines{"step 3", ""}));
}

TEST(Terminal, LosesNothingThatOthersPrint) {
  Screen screen(60);
  Terminal terminal(Terminal::Kind::kOwn, screen.duplicate());
  terminal.draw("step 3");
  ASSERT_EQ(write(screen.descriptor(), " warning\n", 9), 9);
  terminal.draw("step 4");
  EXPECT_EQ(screen.lines(), (Lines{"step 3 warning", "step 4"}));
}

TEST(Terminal, SendsTheLauncherWholeLines) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC), 0);
  const Descriptor reader(ends[0]);
  Terminal terminal(Terminal::Kind::kLaunchers, Descriptor(ends[1]), 70);
  EXPECT_EQ(terminal.width(), 70U);
  terminal.draw("step 1");
  terminal.draw("step 2");
  std::array<char, 64> block{};
  const ssize_t count = read(reader.get(), block.data(), block.size());
  EXPECT_EQ(std::string(block.data(), static_cast<std::size_t>(count)), "step 1\nstep 2\n");
}

TEST(Terminal, DoesNotWaitForALauncherThatReadsNothing) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC), 0);
  const Descriptor reader(ends[0]);
  Terminal terminal(Terminal::Kind::kLaunchers, Descriptor(ends[1]), 70);
  for (int i = 0; i < 5000; ++i) terminal.draw("a line of some length, number " + std::to_string(i));
  SUCCEED();
}

TEST(Terminal, IsSilentWhereThereIsNone) {
  Screen screen(60);
  Terminal terminal(Terminal::Kind::kNone, screen.duplicate());
  terminal.draw("step 1");
  terminal.leave();
  EXPECT_EQ(screen.bytes(), "");
}

}  // namespace
}  // namespace tessera::observe
