#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include "checkpoint/byte_ranges.h"
#include "checkpoint/slice_runs.h"
#include "support/error_message.h"

namespace tessera::checkpoints {
namespace {

std::vector<std::int64_t> firsts(const SliceRuns& runs) {
  std::vector<std::int64_t> places;
  runs.for_each([&](std::int64_t first) { places.push_back(first); });
  return places;
}

TEST(SliceRuns, AreOneForWholeRows) {
  const SliceRuns runs({4, 3, 5}, {{1, 0, 0}, {2, 3, 5}}, "t");
  EXPECT_EQ(runs.run_length(), 30);
  EXPECT_EQ(firsts(runs), (std::vector<std::int64_t>{15}));
}

TEST(SliceRuns, AreOneARowForColumns) {
  const SliceRuns runs({2, 3, 4}, {{0, 1, 1}, {2, 2, 3}}, "t");
  EXPECT_EQ(runs.run_length(), 3);
  EXPECT_EQ(firsts(runs), (std::vector<std::int64_t>{5, 9, 17, 21}));
}

TEST(SliceRuns, AreFoundByTheirNumber) {
  for (const SlicePlace& place :
       {SlicePlace{{2, 3, 4}, {0, 1, 1}, {2, 2, 3}}, SlicePlace{{3, 2, 2, 5}, {1, 0, 1, 2}, {2, 2, 1, 2}},
        SlicePlace::whole({4, 5}), SlicePlace::stretch(20, 3, 9)}) {
    const SliceRuns runs(place, "t");
    std::vector<std::int64_t> found;
    for (std::int64_t run = 0; run < runs.num_runs(); ++run) found.push_back(runs.first_of(run));
    EXPECT_EQ(found, firsts(runs));
  }
}

TEST(SliceRuns, AreOneElementForAScalar) {
  const SliceRuns runs({}, {{}, {}}, "t");
  EXPECT_EQ(runs.run_length(), 1);
  EXPECT_EQ(firsts(runs), (std::vector<std::int64_t>{0}));
}

TEST(SliceRuns, AreNoneForAnEmptySlice) {
  EXPECT_EQ(SliceRuns({4, 3}, {{4, 0}, {0, 3}}, "t").num_runs(), 0);
  EXPECT_TRUE(firsts(SliceRuns({4, 3}, {{0, 1}, {4, 0}}, "t")).empty());
}

TEST(SliceRuns, RefuseWhatIsNotInside) {
  const auto refused = [](const TensorSlice& slice) {
    return testing::message_of<ConfigError>([&] { SliceRuns({4, 3}, slice, "tensor t"); });
  };
  testing::expect_parts(refused({{0, 1}, {4, 3}}), {"tensor t", "[4, 3]", "[0, 1]", "not inside"});
  testing::expect_parts(refused({{-1, 0}, {1, 1}}), {"not inside"});
  testing::expect_parts(refused({{0, 0}, {1, -1}}), {"not inside"});
  testing::expect_parts(refused({{0}, {1}}), {"not inside"});
  testing::expect_parts(refused({{INT64_MAX, 0}, {INT64_MAX, 1}}), {"not inside"});
}

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
