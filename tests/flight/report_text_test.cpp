#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "flight/scene.h"

namespace tessera::flight {
namespace {

using ::testing::HasSubstr;

TEST(ReportText, PutsRanksThatDoTheSameIntoOneLine) {
  Scene scene(1000);
  for (int rank = 0; rank < 1000; ++rank) {
    if (rank != 500) scene.call(rank, "all_reduce", 40);
  }
  scene.at(500).condition = RankCondition::kRunning;
  const std::string text = to_text(scene.report());
  EXPECT_THAT(text, HasSubstr("0-499,501-999 waits in all_reduce #1 of group world"));
  EXPECT_THAT(text, HasSubstr("for 5.0 s"));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 20);
}

TEST(ReportText, KeepsToTheWidth) {
  Scene scene(3);
  for (const int rank : {0, 1}) scene.call(rank, "all_reduce", 40);
  scene.call(2, "broadcast", 41);
  for (const int width : {60, 80, 110}) {
    std::istringstream lines(to_text(scene.report(), width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), static_cast<std::size_t>(width)) << line;
  }
}

TEST(ReportText, SaysWhetherTheJobEnds) {
  Scene scene(2);
  scene.call(0, "barrier", 40);
  EXPECT_THAT(to_text(scene.report(true)), HasSubstr("HANG   somebody waits"));
  EXPECT_THAT(to_text(scene.report(false)), HasSubstr("SLOW   somebody waits"));
}

TEST(ReportText, AdmitsThatItDoesNotKnow) {
  Scene scene(2);
  for (const int rank : {0, 1}) scene.call(rank, "barrier", 40);
  EXPECT_THAT(to_text(scene.report()), HasSubstr("does not tell"));
}

}  // namespace
}  // namespace tessera::flight
