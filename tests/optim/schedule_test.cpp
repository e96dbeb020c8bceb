#include <tessera/core/config_file.h>
#include <tessera/core/error.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/schedule.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "support/error_message.h"

namespace tessera::testing {
namespace {

ScheduleOptions of(ScheduleKind kind) {
  return ScheduleOptions().kind(kind).warmup_steps(10).total_steps(110).min_factor(0.1);
}

TEST(LrFactor, RisesOnALineDuringTheWarmUp) {
  for (const auto& options : {ScheduleOptions().warmup_steps(10), of(ScheduleKind::kLinear), of(ScheduleKind::kCosine),
                              of(ScheduleKind::kWsd).decay_steps(20)}) {
    EXPECT_DOUBLE_EQ(lr_factor(options, 0), 0.1);
    EXPECT_DOUBLE_EQ(lr_factor(options, 4), 0.5);
    EXPECT_DOUBLE_EQ(lr_factor(options, 9), 1);
    EXPECT_DOUBLE_EQ(lr_factor(options, 10), 1);
  }
}

TEST(LrFactor, StaysWhenConstant) { EXPECT_EQ(lr_factor(ScheduleOptions(), 1'000'000'000), 1); }

TEST(LrFactor, FallsOnALine) {
  const auto options = of(ScheduleKind::kLinear);
  EXPECT_DOUBLE_EQ(lr_factor(options, 60), 0.55);
  EXPECT_DOUBLE_EQ(lr_factor(options, 85), 0.325);
  EXPECT_DOUBLE_EQ(lr_factor(options, 109), 0.109);
}

TEST(LrFactor, FallsOnHalfAWave) {
  const auto options = of(ScheduleKind::kCosine);
  EXPECT_DOUBLE_EQ(lr_factor(options, 60), 0.55);
  EXPECT_NEAR(lr_factor(options, 35), 0.1 + 0.9 * (2 + std::sqrt(2)) / 4, 1e-15);
  EXPECT_NEAR(lr_factor(options, 85), 0.1 + 0.9 * (2 - std::sqrt(2)) / 4, 1e-15);
}

TEST(LrFactor, StaysThenFallsOnALineWithWsd) {
  const auto options = of(ScheduleKind::kWsd).decay_steps(20);
  EXPECT_EQ(lr_factor(options, 90), 1);
  EXPECT_DOUBLE_EQ(lr_factor(options, 100), 0.55);
  EXPECT_DOUBLE_EQ(lr_factor(options, 109), 0.145);
}

TEST(LrFactor, NeitherJumpsNorRisesAfterTheWarmUpAndEndsAtTheLeast) {
  for (const auto& options :
       {of(ScheduleKind::kLinear), of(ScheduleKind::kCosine), of(ScheduleKind::kWsd).decay_steps(20)}) {
    for (std::int64_t step = 10; step < 130; ++step) {
      const double fall = lr_factor(options, step - 1) - lr_factor(options, step);
      EXPECT_GE(fall, 0) << to_string(options.kind()) << " at " << step;
      EXPECT_LT(fall, 0.05) << to_string(options.kind()) << " at " << step;
    }
    EXPECT_EQ(lr_factor(options, 110), 0.1);
    EXPECT_EQ(lr_factor(options, 1'000'000), 0.1);
  }
}

TEST(LrFactor, AllowsNothingButAWarmUp) {
  EXPECT_EQ(lr_factor(of(ScheduleKind::kLinear).warmup_steps(110), 109), 1);
  EXPECT_EQ(lr_factor(of(ScheduleKind::kCosine).warmup_steps(110), 110), 0.1);
}

TEST(LrFactor, NamesEveryFault) {
  const auto fault_of = [](const ScheduleOptions& options) {
    return message_of<ConfigError>([&] { lr_factor(options, 0); });
  };
  expect_parts(fault_of(ScheduleOptions().warmup_steps(-1).total_steps(-1).min_factor(2).decay_steps(3)),
               {"warmup_steps must not be negative", "total_steps must not be negative",
                "min_factor must be from 0 to 1", "decay_steps means nothing to constant; leave it out or take wsd"});
  expect_parts(fault_of(ScheduleOptions().kind(ScheduleKind::kCosine)), {"total_steps of cosine must be given"});
  expect_parts(fault_of(of(ScheduleKind::kWsd)), {"decay_steps of wsd"});
  expect_parts(fault_of(of(ScheduleKind::kWsd).decay_steps(101)), {"before the decay begins", "found 10"});
  expect_parts(fault_of(ScheduleOptions().min_factor(0.1)), {"min_factor means nothing to constant"});
  expect_parts(message_of<ConfigError>([] { lr_factor(ScheduleOptions(), -1); }), {"expected a step from 0 on"});
}

TEST(ScheduleOptions, AreReadFromToml) {
  ScheduleOptions options;
  parse_config("kind = 'wsd'\nwarmup_steps = 5\ntotal_steps = 50\ndecay_steps = 10\nmin_factor = 0.25", "test",
               options);
  EXPECT_EQ(options.kind(), ScheduleKind::kWsd);
  EXPECT_EQ(lr_factor(options, 45), 0.625);
  EXPECT_THROW(parse_config("kind = 'polynomial'", "test", options), ConfigError);
}

std::vector<torch::optim::OptimizerParamGroup> groups() {
  const auto one = [](double lr) {
    return torch::optim::OptimizerParamGroup({at::ones({2}).set_requires_grad(true)},
                                             std::make_unique<optim::AdamWOptions>(lr));
  };
  return {one(0.4), one(0.02)};
}

std::vector<double> rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> found;
  for (const auto& group : optimizer.param_groups()) found.push_back(group.options().get_lr());
  return found;
}

TEST(LrSchedule, KeepsTheRatiosOfTheGroups) {
  optim::AdamW optimizer(groups());
  LrSchedule schedule(optimizer, of(ScheduleKind::kLinear));
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.4 * 0.1, 0.02 * 0.1}));
  for (int i = 0; i < 60; ++i) schedule.advance();
  EXPECT_EQ(schedule.step(), 60);
  EXPECT_EQ(rates(optimizer), (std::vector<double>{0.4 * schedule.factor(), 0.02 * schedule.factor()}));
}

TEST(LrSchedule, ResumesByTheNumberOfTheStep) {
  optim::AdamW through(groups());
  LrSchedule schedule(through, of(ScheduleKind::kCosine));
  for (int i = 0; i < 37; ++i) schedule.advance();
  std::stringstream file;
  torch::save(through, file);

  optim::AdamW resumed(groups());
  LrSchedule again(resumed, of(ScheduleKind::kCosine));
  torch::load(resumed, file);
  again.set_step(37);
  EXPECT_EQ(rates(resumed), rates(through));
  schedule.advance();
  again.advance();
  EXPECT_EQ(rates(resumed), rates(through));
}

TEST(LrSchedule, ServesAnyOptimizer) {
  torch::optim::SGD optimizer({at::ones({2}).set_requires_grad(true)}, 0.5);
  LrSchedule schedule(optimizer, ScheduleOptions().warmup_steps(2));
  EXPECT_EQ(rates(optimizer), std::vector<double>{0.25});
  schedule.advance();
  EXPECT_EQ(rates(optimizer), std::vector<double>{0.5});
}

TEST(LrSchedule, RefusesGroupsThatCameLater) {
  optim::AdamW optimizer(groups());
  LrSchedule schedule(optimizer, ScheduleOptions());
  optimizer.add_param_group(groups()[0]);
  expect_parts(message_of<ConfigError>([&] { schedule.advance(); }), {"the optimizer had 2 parameter groups, found 3"});
  EXPECT_EQ(schedule.step(), 0);
}

}  // namespace
}  // namespace tessera::testing
