#include "launch/attempt.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::launch {
namespace {

using std::chrono::milliseconds;

TEST(Backoff, StartsAtOnceThenDoublesUpToItsLongest) {
  Backoff backoff;
  std::vector<int> waits;
  for (int i = 0; i < 9; ++i) waits.push_back(static_cast<int>(backoff.next(false).count()));
  EXPECT_EQ(waits, (std::vector<int>{0, 100, 200, 400, 800, 1600, 3200, 5000, 5000}));
}

TEST(Backoff, TreatsAJobThatRanWellAsNew) {
  Backoff backoff;
  backoff.next(false);
  EXPECT_EQ(backoff.next(false), milliseconds(100));
  EXPECT_EQ(backoff.next(true), milliseconds(0));
  EXPECT_EQ(backoff.next(false), milliseconds(100));
}

}  // namespace
}  // namespace tessera::launch
