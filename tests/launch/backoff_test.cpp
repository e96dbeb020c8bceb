#include "launch/backoff.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Backoff, StartsAtOnceThenDoublesUpToItsLongest) {
  Backoff backoff;
  std::vector<int> waits;
  for (int i = 0; i < 9; ++i) waits.push_back(static_cast<int>(backoff.next(seconds(1)).count()));
  EXPECT_EQ(waits, (std::vector<int>{0, 100, 200, 400, 800, 1600, 3200, 5000, 5000}));
}

TEST(Backoff, TreatsAJobThatRanWellAsNew) {
  Backoff backoff;
  backoff.next(seconds(1));
  EXPECT_EQ(backoff.next(seconds(59)), milliseconds(100));
  EXPECT_EQ(backoff.next(seconds(60)), milliseconds(0));
  EXPECT_EQ(backoff.next(seconds(1)), milliseconds(100));
}

}  // namespace
}  // namespace tessera::launch
