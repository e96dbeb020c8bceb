#include "offload/store/extent_map.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tessera::offload {
namespace {

TEST(ExtentMap, TakesTheSmallestGapThatHolds) {
  ExtentMap map(16);
  map.grow(1024);
  const Extent a = map.take(100).value();
  const Extent b = map.take(200).value();
  const Extent c = map.take(100).value();
  EXPECT_EQ(a, (Extent{0, 112})) << "rounded up to the alignment";
  map.give_back(b);
  map.give_back(a);
  EXPECT_EQ(map.take(320), (Extent{0, 320})) << "neighbours were joined";
  EXPECT_EQ(map.take(50)->offset, c.end()) << "the only gap";
}

TEST(ExtentMap, SaysHowMuchItLacks) {
  ExtentMap map(16);
  EXPECT_EQ(map.lacking(20), 32U);
  map.grow(32);
  EXPECT_EQ(map.lacking(20), 0U);
  EXPECT_EQ(map.lacking(64), 32U) << "what is free at the end is used";
  const Extent a = map.take(32).value();
  EXPECT_FALSE(map.take(1));
  EXPECT_EQ(map.lacking(1), 16U);
  map.grow(16);
  const Extent last = map.take(16).value();
  map.give_back(a);
  EXPECT_EQ(map.lacking(48), 48U) << "the gap is not at the end";
  map.give_back(last);
  EXPECT_EQ(map.lacking(48), 0U);
}

TEST(ExtentMap, RefusesWhatNobodyHasTaken) {
  ExtentMap map(16);
  map.grow(64);
  const Extent a = map.take(32).value();
  map.give_back(a);
  EXPECT_THROW(map.give_back(a), InternalError);
  EXPECT_THROW(map.give_back({128, 16}), InternalError);
}

TEST(ExtentMap, GivesNoByteTwice) {
  constexpr std::uint64_t kUnit = 8;
  std::mt19937 random(7);
  ExtentMap map(kUnit);
  std::vector<int> owner;  // of each unit; 0: free
  std::vector<std::pair<Extent, int>> held;
  for (int step = 1; step <= 20000; ++step) {
    if (random() % 2 == 0 || held.empty()) {
      const std::uint64_t wanted = 1 + random() % 300;
      if (const std::uint64_t lacking = map.lacking(wanted); lacking > 0) {
        ASSERT_FALSE(map.take(wanted));
        if (random() % 4 != 0) continue;
        map.grow(lacking);
        owner.resize(map.capacity() / kUnit);
      }
      const Extent extent = map.take(wanted).value();
      ASSERT_GE(extent.num_bytes, wanted);
      for (std::uint64_t at = extent.offset; at < extent.end(); at += kUnit) ASSERT_EQ(owner[at / kUnit], 0);
      for (std::uint64_t at = extent.offset; at < extent.end(); at += kUnit) owner[at / kUnit] = step;
      held.emplace_back(extent, step);
    } else {
      const std::size_t which = random() % held.size();
      const auto [extent, number] = held[which];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      for (std::uint64_t at = extent.offset; at < extent.end(); at += kUnit) owner[at / kUnit] = 0;
      map.give_back(extent);
    }
    std::uint64_t used = 0;
    for (const auto& [extent, number] : held) used += extent.num_bytes;
    ASSERT_EQ(map.free_bytes(), map.capacity() - used);
  }
  for (const auto& [extent, number] : held) map.give_back(extent);
  EXPECT_EQ(map.take(map.capacity())->num_bytes, map.capacity()) << "all of it is one gap again";
}

}  // namespace
}  // namespace tessera::offload
