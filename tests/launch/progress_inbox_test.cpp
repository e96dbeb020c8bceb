#include "launch/progress_inbox.h"

#include <gtest/gtest.h>

#include <fstream>

namespace tessera::launch {
namespace {

void write(const ProgressInbox& inbox, const std::string& text) { std::ofstream(inbox.path()) << text; }

TEST(ProgressInbox, GivesTheLatestWholeLine) {
  ProgressInbox inbox;
  EXPECT_FALSE(inbox.take());
  write(inbox, "step 1\nstep 2\nste");
  EXPECT_EQ(inbox.take(), "step 2");
  EXPECT_FALSE(inbox.take());
  write(inbox, "p 3\n");
  EXPECT_EQ(inbox.take(), "step 3");
  write(inbox, "\n");
  EXPECT_EQ(inbox.take(), "");
}

TEST(ProgressInbox, KeepsEscapesOffTheTerminal) {
  ProgressInbox inbox;
  write(inbox, "\033[2Jgone\t\xff\n");
  EXPECT_EQ(inbox.take(), "?[2Jgone??");
}

TEST(ProgressInbox, DoesNotGrowWithALineThatHasNoEnd) {
  ProgressInbox inbox;
  write(inbox, std::string(3000, 'x'));
  EXPECT_FALSE(inbox.take());
  write(inbox, "tail\n");
  EXPECT_EQ(inbox.take(), "tail");
  write(inbox, std::string(3000, 'y') + "\n");
  EXPECT_EQ(inbox.take(), std::string(1000, 'y'));
}

}  // namespace
}  // namespace tessera::launch
