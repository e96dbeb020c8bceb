#include "launch/rank_output.h"

#include <gtest/gtest.h>

namespace tessera::launch {
namespace {

TEST(OutputTail, KeepsTheLastLinesOfBothStreams) {
  OutputTail tail;
  for (int i = 0; i < 30; ++i) tail.add(i % 2 == 0 ? Stream::kOutput : Stream::kError, std::to_string(i));
  ASSERT_EQ(tail.lines().size(), OutputTail::kMaxLines);
  EXPECT_EQ(tail.lines().front(), "10");
  EXPECT_EQ(tail.lines().back(), "29");
}

TEST(OutputTail, CutsLongLines) {
  OutputTail tail;
  tail.add(Stream::kOutput, std::string(100'000, 'x'));
  EXPECT_EQ(tail.lines().front().size(), OutputTail::kMaxLineBytes + 4);
}

TEST(OutputTail, FindsTheTextOfAnUncaughtException) {
  OutputTail tail;
  tail.add(Stream::kError, "terminate called after throwing an instance of 'std::runtime_error'");
  tail.add(Stream::kError, "  what():  the disk is full");
  tail.add(Stream::kError, "Aborted");
  EXPECT_EQ(tail.error_text(), "the disk is full");
}

TEST(OutputTail, FindsTheLastMessageOfATesseraProgram) {
  OutputTail tail;
  tail.add(Stream::kError, "tessera: first");
  tail.add(Stream::kError, "tessera: second");
  tail.add(Stream::kOutput, "tessera: not an error");
  EXPECT_EQ(tail.error_text(), "second");
}

}  // namespace
}  // namespace tessera::launch
