#include "mesh/axis_names.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using mesh::nearest_sizes;
using mesh::product_fault;

using Axes = std::vector<AxisSpec>;

TEST(NearestSizes, KeepsSizesThatFit) {
  EXPECT_EQ(nearest_sizes({{"dp", 4}, {"tp", 2}}, 8), (Axes{{"dp", 4}, {"tp", 2}}));
}

TEST(NearestSizes, ChangesAsFewAxesAsPossible) {
  EXPECT_EQ(nearest_sizes({{"dp", 4}, {"tp", 3}}, 8), (Axes{{"dp", 4}, {"tp", 2}}));
  EXPECT_EQ(nearest_sizes({{"dp", 4}, {"tp", 2}, {"pp", 2}}, 8), (Axes{{"dp", 2}, {"tp", 2}, {"pp", 2}}));
}

TEST(NearestSizes, ChangesSeveralAxesWhenOneDoesNotDo) {
  EXPECT_EQ(nearest_sizes({{"dp", 3}, {"tp", 3}}, 8), (Axes{{"dp", 2}, {"tp", 4}}));
}

TEST(NearestSizes, GivesAPrimeToOneAxis) {
  EXPECT_EQ(nearest_sizes({{"dp", 4}, {"tp", 2}}, 7), (Axes{{"dp", 7}, {"tp", 1}}));
}

TEST(ProductFault, NamesTheSizesAndBothWaysOut) {
  EXPECT_EQ(product_fault({{"dp", 4}, {"tp", 2}}, 8), "");
  EXPECT_EQ(product_fault({{"dp", 4}, {"tp", 3}}, 8),
            "the sizes {dp: 4, tp: 3} need 12 ranks, the world has 8: use {dp: 4, tp: 2}, or start 12 ranks");
}

TEST(ProductFault, SurvivesSizesBeyondCounting) {
  EXPECT_NE(product_fault({{"a", 1 << 30}, {"b", 1 << 30}, {"c", 1 << 30}}, 8), "");
  EXPECT_NE(product_fault({}, 8), "");
}

}  // namespace
}  // namespace tessera
