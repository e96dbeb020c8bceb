#include "train/window_index.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tessera::train {
namespace {

TEST(WindowIndex, CountsWholeWindows) {
  WindowIndex index(4, false);
  for (const std::int64_t num_tokens : {0, 1, 4, 5, 8, 9, 10}) index.add_extent(num_tokens);
  EXPECT_EQ(index.num_windows(), 0 + 0 + 0 + 1 + 1 + 2 + 2);
  EXPECT_EQ(index.num_tokens_left_out(), 3 + 3 + 1);
}

TEST(WindowIndex, FillsTheLastWindowOfAExtent) {
  WindowIndex index(4, true);
  for (const std::int64_t num_tokens : {0, 1, 2, 5, 6}) index.add_extent(num_tokens);
  EXPECT_EQ(index.num_windows(), 0 + 0 + 1 + 1 + 2);
  EXPECT_EQ(index.num_tokens_left_out(), 0);
}

TEST(WindowIndex, FindsWhereEachWindowLies) {
  WindowIndex index(4, true);
  for (const std::int64_t num_tokens : {9, 0, 1, 5, 6}) index.add_extent(num_tokens);
  std::vector<std::pair<std::int64_t, std::int64_t>> found;
  for (std::int64_t window = 0; window < index.num_windows(); ++window) {
    found.emplace_back(index.find(window).extent, index.find(window).window);
  }
  EXPECT_EQ(found, (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {0, 1}, {3, 0}, {4, 0}, {4, 1}}));
}

}  // namespace
}  // namespace tessera::train
