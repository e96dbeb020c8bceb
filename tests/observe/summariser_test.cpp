#include "observe/summariser.h"

#include <gtest/gtest.h>

namespace tessera::observe {
namespace {

TimedRecord timed(std::int64_t step, double seconds) {
  return {{.step = step, .loss = 10.0 - static_cast<double>(step), .tokens = 100}, seconds, step * 1000};
}

TEST(Summariser, PassesEachRecordOnWhenAskedForEveryOne) {
  Summariser summariser(1);
  const auto summary = summariser.add(timed(3, 0.5));
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->last.step, 3);
  EXPECT_EQ(summary->num_steps, 1);
  EXPECT_EQ(summary->tokens, 100);
  EXPECT_DOUBLE_EQ(summary->tokens_per_second(), 200);
  EXPECT_FALSE(summariser.take_rest());
}

TEST(Summariser, AddsUpTokensAndTimeAndKeepsTheLastOfTheRest) {
  Summariser summariser(3);
  EXPECT_FALSE(summariser.add(timed(1, 1.0)));
  EXPECT_FALSE(summariser.add(timed(2, 2.0)));
  const auto summary = summariser.add(timed(3, 3.0));
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->num_steps, 3);
  EXPECT_EQ(summary->tokens, 300);
  EXPECT_DOUBLE_EQ(summary->seconds, 6);
  EXPECT_DOUBLE_EQ(summary->step_seconds(), 2);
  EXPECT_EQ(summary->last.loss, 7);
  EXPECT_EQ(summary->time_ns, 3000);
}

TEST(Summariser, GivesTheRestAtTheEnd) {
  Summariser summariser(3);
  for (std::int64_t step = 1; step <= 4; ++step) summariser.add(timed(step, 1));
  const auto rest = summariser.take_rest();
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->num_steps, 1);
  EXPECT_EQ(rest->last.step, 4);
  EXPECT_FALSE(summariser.take_rest());
}

}  // namespace
}  // namespace tessera::observe
