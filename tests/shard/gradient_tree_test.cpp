#include <tessera/shard/gradient_tree.h>

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "support/error_message.h"

namespace tessera {
namespace {

at::Tensor contribution(std::int64_t number) { return at::sin(at::arange(100) * 0.1 + 1.7 * number) * 1e3; }

at::Tensor pairwise(std::int64_t begin, std::int64_t count) {
  if (count == 1) return contribution(begin);
  return pairwise(begin, count / 2) + pairwise(begin + count / 2, count / 2);
}

TEST(GradientTree, AddsAlongOneTreeInWhateverOrderContributionsCome) {
  std::vector<std::int64_t> order(8);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    GradientTree tree(8);
    for (const auto number : order) tree.add(number, contribution(number));
    ASSERT_TRUE(tree.is_complete());
    EXPECT_TRUE(at::equal(tree.take(), pairwise(0, 8)));
    std::shuffle(order.begin(), order.end(), random);
  }
}

TEST(GradientTree, DiffersFromAddingInARow) {
  at::Tensor row = contribution(0);
  for (int number = 1; number < 8; ++number) row = row + contribution(number);
  EXPECT_FALSE(at::equal(row, pairwise(0, 8))) << "the other tests say nothing";
}

TEST(GradientTree, RefusesWhatIsNotThereOrCameBefore) {
  GradientTree tree(2);
  for (const std::int64_t number : {2, -1}) {
    testing::expect_parts(testing::message_of<ConfigError>([&] { tree.add(number, contribution(2)); }),
                          {"expected a micro-batch of 0 to 1, found " + std::to_string(number)});
  }
  tree.add(1, contribution(1));
  testing::expect_parts(testing::message_of<ConfigError>([&] { tree.add(1, contribution(1)); }),
                        {"micro-batch 1 came twice in one step"});
  EXPECT_THROW(tree.take(), InternalError);
  EXPECT_THROW(GradientTree(6), InternalError);
}

}  // namespace
}  // namespace tessera
