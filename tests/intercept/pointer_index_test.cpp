#include "intercept/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tessera::intercept {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Pairs = std::vector<std::pair<const void*, int>>;

TEST(PointerIndex, FindsNothingWhenItIsEmpty) {
  const int one = 1;
  EXPECT_THAT(PointerIndex<int>().find(&one), IsEmpty());
  EXPECT_THAT(PointerIndex<int>().find(nullptr), IsEmpty());
}

TEST(PointerIndex, FindsAllOfAKeyInTheirOrder) {
  const std::vector<int> keys(3);
  const PointerIndex<int> index(Pairs{{&keys[1], 5}, {&keys[0], 7}, {&keys[1], 3}, {nullptr, 9}});
  EXPECT_THAT(index.find(&keys[0]), ElementsAre(7));
  EXPECT_THAT(index.find(&keys[1]), ElementsAre(5, 3));
  EXPECT_THAT(index.find(&keys[2]), IsEmpty());
  EXPECT_THAT(index.find(nullptr), IsEmpty());
}

TEST(PointerIndex, KeepsManyApart) {
  std::vector<int> keys(3000);
  Pairs pairs;
  for (std::size_t i = 0; i < keys.size(); i += 2) pairs.emplace_back(&keys[i], static_cast<int>(i));
  const PointerIndex<int> index(pairs);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto found = index.find(&keys[i]);
    ASSERT_EQ(found.size(), i % 2 == 0 ? 1U : 0U);
    if (i % 2 == 0) {
      EXPECT_EQ(found[0], static_cast<int>(i));
    }
  }
}

}  // namespace
}  // namespace tessera::intercept
