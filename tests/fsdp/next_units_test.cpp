#include "fsdp/gather_schedule.h"

#include <gtest/gtest.h>

namespace tessera::fsdp {
namespace {

using Units = std::vector<int>;

void train(NextUnits& order, const Units& forward, const Units& backward) {
  for (const int unit : forward) order.used(unit, Pass::kForward);
  for (const int unit : backward) order.used(unit, Pass::kBackward);
}

TEST(NextUnits, KnowsNothingAtFirst) {
  NextUnits order;
  order.used(0, Pass::kForward);
  EXPECT_TRUE(order.predict(3).empty());
}

TEST(NextUnits, FollowsTheFirstIterationThroughForwardAndBackward) {
  NextUnits order;
  train(order, {0, 1, 2, 0}, {0, 2, 1, 0});
  train(order, {0, 1}, {});
  EXPECT_EQ(order.predict(1), Units{2});
  EXPECT_EQ(order.predict(2), (Units{2, 0}));
  train(order, {2, 0}, {});
  EXPECT_EQ(order.predict(2), (Units{2, 1})) << "backward follows";
  train(order, {}, {0, 2});
  EXPECT_EQ(order.predict(1), Units{1});
}

TEST(NextUnits, KeepsEvaluationApart) {
  NextUnits order;
  train(order, {0, 1, 2}, {2, 1, 0});
  for (const int unit : {0, 2, 0, 2}) order.used(unit, Pass::kEvaluation);
  order.used(0, Pass::kForward);
  order.used(1, Pass::kForward);
  EXPECT_EQ(order.predict(1), Units{2});
}

TEST(NextUnits, LearnsAnotherPathAtOnce) {
  NextUnits order;
  for (int i = 0; i < 3; ++i) train(order, {0, 1, 2, 3}, {3, 2, 1, 0});
  train(order, {0, 1, 3}, {3, 1, 0});
  train(order, {0, 1}, {});
  EXPECT_EQ(order.predict(1), Units{3});
}

TEST(NextUnits, DoesNotLookPastTheEndOfBackward) {
  NextUnits order;
  for (int i = 0; i < 3; ++i) train(order, {0, 1, 2}, {2, 1, 0});
  EXPECT_TRUE(order.predict(2).empty()) << "the optimizer comes next, and with it other values";
  train(order, {0}, {});
  EXPECT_EQ(order.predict(2), (Units{1, 2})) << "the next forward begins with the unit that backward ended with";
  train(order, {1, 2}, {});
  EXPECT_EQ(order.predict(2), (Units{1, 0}));
}

TEST(NextUnits, EndsWhenItGoesInCircles) {
  NextUnits order;
  for (int i = 0; i < 3; ++i) train(order, {0, 1}, {});
  EXPECT_EQ(order.predict(5), Units{0});
}

}  // namespace
}  // namespace tessera::fsdp
