#include "observe/sinks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tessera::observe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepSummary exposed_sample() {
  StepSummary summary;
  summary.last = {.step = 7, .loss = 2.5, .scalars = {{"validation/loss", 2.75}, {"odd \"name\"\\\n", 1}}};
  summary.tokens = 100;
  summary.seconds = 0.5;
  return summary;
}

TEST(Exposition, DescribesEachFigureOnce) {
  const StepSummary summary = exposed_sample();
  const std::string page = exposition(&summary, {.num_ranks = 4, .total_steps = 10}, 700);
  EXPECT_THAT(page, HasSubstr("# HELP tessera_loss Loss of the latest step.\n# TYPE tessera_loss gauge\n"
                              "tessera_loss 2.5\n"));
  EXPECT_THAT(page, HasSubstr("\ntessera_step 7\n"));
  EXPECT_THAT(page, HasSubstr("\ntessera_tokens_total 700\n"));
  EXPECT_THAT(page, HasSubstr("\ntessera_tokens_per_second 200\n"));
  EXPECT_THAT(page, HasSubstr("\ntessera_ranks 4\n"));
  EXPECT_THAT(page, Not(HasSubstr("gradient_norm")));
  EXPECT_EQ(page.back(), '\n');
}

TEST(Exposition, QuotesLabels) {
  const StepSummary summary = exposed_sample();
  const std::string page = exposition(&summary, {}, 0);
  EXPECT_THAT(page, HasSubstr("tessera_scalar{name=\"validation/loss\"} 2.75\n"));
  EXPECT_THAT(page, HasSubstr("tessera_scalar{name=\"odd \\\"name\\\"\\\\\\n\"} 1\n"));
}

TEST(Exposition, SpellsWhatIsNotFinite) {
  StepSummary summary = exposed_sample();
  summary.last.loss = std::nan("");
  summary.last.gradient_norm = HUGE_VAL;
  const std::string page = exposition(&summary, {}, 0);
  EXPECT_THAT(page, HasSubstr("\ntessera_loss NaN\n"));
  EXPECT_THAT(page, HasSubstr("\ntessera_gradient_norm +Inf\n"));
}

TEST(Exposition, HasOnlyTheRunBeforeTheFirstStep) {
  const std::string page = exposition(nullptr, {.num_ranks = 2}, 0);
  EXPECT_THAT(page, HasSubstr("tessera_ranks 2\n"));
  EXPECT_THAT(page, Not(HasSubstr("tessera_step")));
}

}  // namespace
}  // namespace tessera::observe
