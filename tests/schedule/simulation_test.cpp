#include <tessera/core/error.h>
#include <tessera/schedule/simulation.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera::testing {
namespace {

using ::testing::IsEmpty;

PipelineSchedule two_ranks(int num_micro_batches) {
  return make_pipeline_schedule(PipelineScheduleKind::kOneForwardOneBackward, {2, num_micro_batches});
}

TEST(Simulation, GivesEachOperationItsTime) {
  const auto simulation = simulate(two_ranks(1));
  // Forward, SendActivation, RecvGradient, Backward; RecvActivation, Forward, Backward, SendGradient.
  const std::vector<std::vector<std::pair<double, double>>> expected = {{{0, 1}, {1, 1}, {1, 4}, {4, 6}},
                                                                        {{0, 1}, {1, 2}, {2, 4}, {4, 4}}};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(simulation.ranks[rank].operations[i].start, expected[rank][i].first) << rank << " " << i;
      EXPECT_EQ(simulation.ranks[rank].operations[i].end, expected[rank][i].second) << rank << " " << i;
    }
  }
  EXPECT_EQ(simulation.makespan, 6);
  EXPECT_EQ(simulation.ranks[0].idle(), 3);
  // The wait for the first activation is before the rank's span.
  EXPECT_EQ(simulation.ranks[1].start, 1);
  EXPECT_EQ(simulation.ranks[1].idle(), 0);
  EXPECT_EQ(simulation.idle_share(), 1);
}

TEST(Simulation, TakesCostsOfEachStage) {
  const auto costs = ScheduleCosts().forward({2, 5}).backward_input({3, 7}).backward_weight({1});
  const auto simulation = simulate(two_ranks(1), costs);
  EXPECT_EQ(simulation.ranks[0].work, 2 + 3 + 1);
  EXPECT_EQ(simulation.ranks[1].work, 5 + 7 + 1);
  EXPECT_EQ(simulation.makespan, 2 + 5 + 7 + 1 + 3 + 1);
}

TEST(Simulation, LetsMessagesTravel) {
  EXPECT_EQ(simulate(two_ranks(1), ScheduleCosts().transfer(0.5)).makespan, 7);
  // Sends do not hold up the sender: the second forward follows at once.
  const auto simulation = simulate(two_ranks(2), ScheduleCosts().transfer(10));
  EXPECT_EQ(simulation.ranks[0].operations[2].start, 1);
}

TEST(Simulation, TakesMessagesInAnyOrder) {
  // The second micro-batch is sent first, and received second.
  PipelineSchedule schedule = make_pipeline_schedule(PipelineScheduleKind::kSequential, {2, 2});
  std::swap(schedule.operations[0][2], schedule.operations[0][3]);
  EXPECT_EQ(simulate(schedule).makespan, 12);
}

TEST(Simulation, RefusesWhatDoesNotWork) {
  PipelineSchedule schedule = two_ranks(1);
  schedule.operations[1].pop_back();
  const auto costs = ScheduleCosts().forward({1, 2, 3}).backward_weight({-1}).transfer(-2);
  EXPECT_EQ(message_of<ConfigError>([&] { simulate(schedule, costs); }),
            "the schedule cannot be simulated:\n"
            "  - rank 1 lacks SendGradient of micro-batch 0, stage 1, to rank 0: rank 0, operation 2 (RecvGradient of "
            "micro-batch 0, stage 0, from rank 1) has no match without it\n"
            "  - 3 costs of the forward for 2 stages: give one for all, or one for each\n"
            "  - -1.000000 for the backward of weights: use 0 to 1e9\n"
            "  - -2.000000 for a transfer: use 0 to 1e9");
  EXPECT_THAT(cost_faults(ScheduleCosts(), 7), IsEmpty());
}

TEST(IdleFormula, IsGivenOnlyWhereItHolds) {
  const PipelineShape shape{4, 6};
  EXPECT_EQ(idle_formula(PipelineScheduleKind::kGPipe, shape)->text, "(p - 1) / m");
  EXPECT_EQ(idle_formula(PipelineScheduleKind::kGPipe, shape, ScheduleCosts().backward_weight({3}))->value, 0.5);
  EXPECT_FALSE(idle_formula(PipelineScheduleKind::kGPipe, shape, ScheduleCosts().transfer(1)));
  EXPECT_FALSE(idle_formula(PipelineScheduleKind::kGPipe, shape, ScheduleCosts().forward({1, 1, 1, 2})));
  EXPECT_FALSE(idle_formula(PipelineScheduleKind::kInterleaved, shape));
  EXPECT_EQ(idle_formula(PipelineScheduleKind::kInterleaved, {4, 8, 2})->value, 3.0 / 16);
  EXPECT_EQ(idle_formula(PipelineScheduleKind::kInterleaved, {4, 6, 1})->value, 0.5);
  EXPECT_EQ(idle_formula(PipelineScheduleKind::kZeroBubbleH1, shape)->value, 3.0 / 18);
  EXPECT_FALSE(idle_formula(PipelineScheduleKind::kZeroBubbleH1, shape, ScheduleCosts().backward_weight({3})));
  EXPECT_FALSE(idle_formula(PipelineScheduleKind::kZeroBubbleV, shape));
  EXPECT_EQ(idle_formula(PipelineScheduleKind::kZeroBubbleV, {3, 5})->value, 0);
  EXPECT_FALSE(idle_formula(PipelineScheduleKind::kZeroBubbleV, {3, 4}));
}

}  // namespace
}  // namespace tessera::testing
