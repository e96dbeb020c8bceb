#include "intercept/large_block_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <vector>

namespace tessera::intercept {
namespace {

constexpr std::size_t kPageMib = std::size_t{1} << 20;

TEST(PageHeap, GivesWhatWasFreedToTheNextOfTheSameSize) {
  PageHeap heap(64 * kPageMib);
  void* const first = heap.take(3 * kPageMib);
  void* const second = heap.take(3 * kPageMib);
  EXPECT_NE(first, second);
  EXPECT_TRUE(heap.give_back(first));
  EXPECT_EQ(heap.spare_bytes(), 3 * kPageMib);
  EXPECT_EQ(heap.take(3 * kPageMib), first);
  EXPECT_EQ(heap.spare_bytes(), 0U);
  EXPECT_EQ(heap.used_bytes(), 6 * kPageMib);
}

TEST(PageHeap, JoinsNeighboursThatAreFree) {
  PageHeap heap(64 * kPageMib);
  auto* const whole = static_cast<char*>(heap.take(6 * kPageMib));
  heap.give_back(whole);
  void* const low = heap.take(kPageMib);
  void* const middle = heap.take(2 * kPageMib);
  void* const high = heap.take(3 * kPageMib);
  EXPECT_EQ(low, whole);
  EXPECT_EQ(middle, whole + kPageMib);
  EXPECT_EQ(high, whole + 3 * kPageMib);
  heap.give_back(low);
  heap.give_back(high);
  heap.give_back(middle);  // between the two
  EXPECT_EQ(heap.take(6 * kPageMib), whole);
}

TEST(PageHeap, TakesTheSmallestRangeThatFits) {
  PageHeap heap(64 * kPageMib);
  auto* const start = static_cast<char*>(heap.take(10 * kPageMib));
  heap.give_back(start);
  void* const large = heap.take(4 * kPageMib);
  void* const wall = heap.take(kPageMib);
  void* const small = heap.take(2 * kPageMib);
  void* const other_wall = heap.take(3 * kPageMib);
  heap.give_back(large);
  heap.give_back(small);
  EXPECT_EQ(heap.take(2 * kPageMib), small);
  EXPECT_EQ(heap.take(3 * kPageMib), large);
  EXPECT_NE(wall, other_wall);
}

TEST(PageHeap, KnowsNoBlockOfOthers) {
  PageHeap heap(kPageMib);
  int other = 0;
  EXPECT_FALSE(heap.give_back(&other));
  void* const none = heap.take(0);
  EXPECT_NE(none, nullptr);
  EXPECT_TRUE(heap.give_back(none));
  EXPECT_FALSE(heap.give_back(none));
  EXPECT_EQ(heap.take(SIZE_MAX), nullptr);
  EXPECT_EQ(heap.take(std::size_t{1} << 60), nullptr);
}

TEST(PageHeap, KeepsAsMuchAsIsInUseAndGivesTheRestBack) {
  PageHeap heap(2 * kPageMib);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(heap.take(kPageMib));
  for (int i = 0; i < 4; ++i) heap.give_back(blocks[static_cast<std::size_t>(i)]);
  EXPECT_EQ(heap.spare_bytes(), 4 * kPageMib);
  for (int i = 4; i < 8; ++i) {
    heap.give_back(blocks[static_cast<std::size_t>(i)]);
    EXPECT_LE(heap.spare_bytes(), std::max(2 * kPageMib, heap.used_bytes()));
  }
  EXPECT_EQ(heap.used_bytes(), 0U);
}

/// Blocks of random sizes that come and go: none lies on another, and each keeps what was written to it.
TEST(PageHeap, KeepsBlocksApart) {
  std::mt19937_64 random(11);  // NOLINT(cert-msc51-cpp): the same run each time
  PageHeap heap(16 * kPageMib);
  std::map<char*, std::size_t> live;
  std::size_t most_used = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() < 40 && random() % 5 < 3) {
      const std::size_t size = 1 + random() % (random() % 4 == 0 ? 2 * kPageMib : std::size_t{300'000});
      auto* const block = static_cast<char*>(heap.take(size));
      ASSERT_NE(block, nullptr);
      const auto next = live.lower_bound(block);
      ASSERT_TRUE(next == live.end() || block + size <= next->first);
      ASSERT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= block);
      block[0] = static_cast<char>(size);
      block[size - 1] = static_cast<char>(size);
      live.emplace(block, size);
    } else if (!live.empty()) {
      const auto one = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      ASSERT_EQ(one->first[0], static_cast<char>(one->second));
      ASSERT_EQ(one->first[one->second - 1], static_cast<char>(one->second));
      ASSERT_TRUE(heap.give_back(one->first));
      live.erase(one);
    }
    most_used = std::max(most_used, heap.used_bytes());
    ASSERT_LE(heap.spare_bytes(), std::max(16 * kPageMib, heap.used_bytes()));
  }
  for (const auto& [block, size] : live) heap.give_back(block);
  EXPECT_EQ(heap.used_bytes(), 0U);
  EXPECT_GT(most_used, 4 * kPageMib);
}

}  // namespace
}  // namespace tessera::intercept
