#include "checkpoint/format/byte_ranges.h"

#include <gtest/gtest.h>

namespace tessera::checkpoints {
namespace {

TEST(ByteRanges, KnowWhatIsMissing) {
  ByteRanges ranges;
  EXPECT_EQ(ranges.first_missing(8), 0U);
  EXPECT_TRUE(ranges.add(4, 8));
  EXPECT_EQ(ranges.first_missing(8), 0U);
  EXPECT_TRUE(ranges.add(0, 2));
  EXPECT_EQ(ranges.first_missing(8), 2U);
  EXPECT_TRUE(ranges.add(2, 4));
  EXPECT_FALSE(ranges.first_missing(8).has_value());
  EXPECT_EQ(ranges.first_missing(9), 8U);
  EXPECT_FALSE(ByteRanges().first_missing(0).has_value());
}

TEST(ByteRanges, RefuseAByteTwice) {
  ByteRanges ranges;
  EXPECT_TRUE(ranges.add(2, 6));
  EXPECT_FALSE(ranges.add(5, 7));
  EXPECT_FALSE(ranges.add(0, 3));
  EXPECT_FALSE(ranges.add(3, 4));
  EXPECT_FALSE(ranges.add(0, 9));
  EXPECT_TRUE(ranges.add(4, 4));
  EXPECT_TRUE(ranges.add(6, 7));
  EXPECT_TRUE(ranges.add(0, 2));
  EXPECT_EQ(ranges.first_missing(8), 7U);
}

}  // namespace
}  // namespace tessera::checkpoints
