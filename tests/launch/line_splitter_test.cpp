#include "launch/rank_output.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::launch {
namespace {

using Lines = std::vector<std::string>;

Lines split(const Lines& blocks) {
  Lines lines;
  LineSplitter splitter([&](std::string_view line) { lines.emplace_back(line); });
  for (const std::string& block : blocks) splitter.add(block);
  splitter.finish();
  return lines;
}

TEST(LineSplitter, JoinsWhatComesInPieces) {
  EXPECT_EQ(split({"a", "b\nc", "\n", "\n", "d\n"}), (Lines{"ab", "c", "", "d"}));
}

TEST(LineSplitter, GivesALastLineWithoutEnd) {
  EXPECT_EQ(split({"one\ntwo"}), (Lines{"one", "two"}));
  EXPECT_EQ(split({"one\n"}), (Lines{"one"}));
  EXPECT_EQ(split({""}), Lines{});
}

TEST(LineSplitter, EndsALineAtACarriageReturn) {
  EXPECT_EQ(split({"\r 10%\r 20%\r", "done\n"}), (Lines{" 10%", " 20%", "done"}));
  EXPECT_EQ(split({"a\r\nb\r", "\nc\r\n\r\n"}), (Lines{"a", "b", "c"}));
}

TEST(LineSplitter, CutsLongLines) {
  const std::string most(LineSplitter::kMaxBytes, 'x');
  EXPECT_EQ(split({most + "\n"}), (Lines{most}));
  EXPECT_EQ(split({most + "yz\n", "next\n"}), (Lines{most, "yz", "next"}));
  EXPECT_EQ(split({most, most, "z"}), (Lines{most, most, "z"}));
  EXPECT_EQ(split({most, "\n\n"}), (Lines{most, ""}));
}

}  // namespace
}  // namespace tessera::launch
