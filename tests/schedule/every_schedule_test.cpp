// What holds for every kind with 1 to 16 ranks, 1 to 64 micro-batches and 1 to 4 chunks.
#include <tessera/schedule/check_schedule.h>
#include <tessera/schedule/simulation.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schedule/shapes.h"

namespace tessera::testing {
namespace {

using ::testing::IsEmpty;
using Kind = PipelineOperation::Kind;

constexpr int kRanks = 16;
constexpr int kMicroBatches = 64;
constexpr int kChunks = 4;

class EverySchedule : public ::testing::TestWithParam<PipelineScheduleKind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, EverySchedule,
                         ::testing::Values(PipelineScheduleKind::kSequential, PipelineScheduleKind::kRoundRobin,
                                           PipelineScheduleKind::kGPipe, PipelineScheduleKind::kOneForwardOneBackward,
                                           PipelineScheduleKind::kInterleaved, PipelineScheduleKind::kZeroBubbleH1,
                                           PipelineScheduleKind::kZeroBubbleV),
                         [](const auto& one) { return name_of(one.param); });

int most_until_weight(const std::vector<PeakActivations>& peaks) {
  int most = 0;
  for (const PeakActivations& peak : peaks) most = std::max(most, peak.until_weight);
  return most;
}

/// The most activations of a rank that a kind may hold. With p ranks, m micro-batches, v chunks:
int limit_of_activations(PipelineScheduleKind kind, const PipelineShape& shape) {
  const int p = shape.num_ranks;
  const int m = shape.num_micro_batches;
  const int v = shape.num_chunks.value_or(default_num_chunks(kind));
  switch (kind) {
    case PipelineScheduleKind::kSequential:
    case PipelineScheduleKind::kGPipe:
      return m;
    case PipelineScheduleKind::kRoundRobin:
      return 1;
    case PipelineScheduleKind::kOneForwardOneBackward:
    case PipelineScheduleKind::kZeroBubbleH1:  // no more than 1f1b
      return std::min(p, m);
    case PipelineScheduleKind::kInterleaved:
      return v == 1 ? std::min(p, m) : std::min((v - 1) * p + 2 * (p - 1) + 1, v * m);
    case PipelineScheduleKind::kZeroBubbleV:  // of half the size: no more than 1f1b
      return 2 * std::min(p, m);
  }
  return 0;
}

/// The idle time of a rank within its span where the formula holds, in units of time with F = B = W = 1. For rank 0
/// this is the published formula.
double expected_idle(PipelineScheduleKind kind, const PipelineShape& shape, int rank) {
  const int m = shape.num_micro_batches;
  const int num_behind = shape.num_ranks - 1 - rank;
  switch (kind) {
    case PipelineScheduleKind::kSequential:
      return 3 * m * num_behind;
    case PipelineScheduleKind::
        kRoundRobin:  // waits for the ranks behind it, and between micro-batches for those before
      return 3 * m * num_behind + 3 * (m - 1) * rank;
    case PipelineScheduleKind::kGPipe:
    case PipelineScheduleKind::kOneForwardOneBackward:
    case PipelineScheduleKind::kInterleaved:
      return 3 * num_behind;
    case PipelineScheduleKind::kZeroBubbleH1:
      return num_behind;
    case PipelineScheduleKind::kZeroBubbleV:
      return 0;
  }
  return -1;
}

TEST_P(EverySchedule, IsAcceptedAndHoldsNoMoreActivationsThanItMay) {
  for (const PipelineShape& shape : shapes_up_to(GetParam(), kRanks, kMicroBatches, kChunks)) {
    const ScheduleCheck found = check_schedule(make_pipeline_schedule(GetParam(), shape));
    ASSERT_THAT(found.faults, IsEmpty()) << text_of(shape);
    const int peak = most_until_weight(found.peaks);
    const int limit = limit_of_activations(GetParam(), shape);
    ASSERT_LE(peak, limit) << text_of(shape);
    // Groups that are not full hold fewer.
    if (GetParam() != PipelineScheduleKind::kInterleaved || shape.num_micro_batches % shape.num_ranks == 0) {
      ASSERT_EQ(peak, limit) << text_of(shape);
    }
  }
}

TEST_P(EverySchedule, IdlesAsThePublishedFormulaSays) {
  int num_with_formula = 0;
  for (const PipelineShape& shape : shapes_up_to(GetParam(), kRanks, kMicroBatches, kChunks)) {
    const auto formula = idle_formula(GetParam(), shape);
    if (!formula) continue;
    ++num_with_formula;
    const ScheduleSimulation simulation = simulate(make_pipeline_schedule(GetParam(), shape));
    ASSERT_NEAR(simulation.idle_share(), formula->value, 1e-12) << text_of(shape);
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
      const RankTimes& times = simulation.ranks[static_cast<std::size_t>(rank)];
      ASSERT_EQ(times.idle(), expected_idle(GetParam(), shape, rank)) << text_of(shape) << ", rank " << rank;
    }
    // The first rank begins first and ends last; but in a V the last rank begins and ends p - 1 later.
    const double last = GetParam() == PipelineScheduleKind::kZeroBubbleV ? shape.num_ranks - 1 : 0;
    const RankTimes& first = simulation.ranks[0];
    ASSERT_EQ(simulation.makespan, first.work + first.idle() + last) << text_of(shape);
  }
  EXPECT_GE(num_with_formula, 400);
}

TEST_P(EverySchedule, IdlesAsTheFormulaSaysWithOtherCostsToo) {
  // Sums of these are exact.
  const std::vector<ScheduleCosts> all_costs = {
      ScheduleCosts().forward({1}).backward_input({1.5}).backward_weight({0.75}),
      ScheduleCosts().forward({4}).backward_input({1}).backward_weight({0.5}),
      ScheduleCosts().forward({1}).backward_input({0.25}).backward_weight({8}),
      ScheduleCosts().forward({0.5}).backward_input({0.5}).backward_weight({0.5})};
  for (const PipelineShape& shape : shapes_up_to(GetParam(), 8, 24, 3)) {
    const PipelineSchedule schedule = make_pipeline_schedule(GetParam(), shape);
    for (const ScheduleCosts& costs : all_costs) {
      const auto formula = idle_formula(GetParam(), shape, costs);
      if (!formula) continue;
      ASSERT_NEAR(simulate(schedule, costs).idle_share(), formula->value, 1e-12) << text_of(shape);
    }
  }
}

TEST_P(EverySchedule, AddsUpGradientsInTheOrderOfMicroBatches) {
  for (const PipelineShape& shape : shapes_up_to(GetParam(), 8, 20, 3)) {
    const PipelineSchedule schedule = make_pipeline_schedule(GetParam(), shape);
    std::map<int, std::vector<int>> order_of_stage;
    for (const auto& operations : schedule.operations) {
      for (const PipelineOperation& operation : operations) {
        if (operation.kind == Kind::kBackward || operation.kind == Kind::kBackwardWeight) {
          order_of_stage[operation.stage].push_back(operation.micro_batch);
        }
      }
    }
    for (auto& [stage, order] : order_of_stage) {
      if (GetParam() == PipelineScheduleKind::kSequential) std::reverse(order.begin(), order.end());
      ASSERT_TRUE(std::is_sorted(order.begin(), order.end())) << text_of(shape) << ", stage " << stage;
    }
  }
}

TEST(Schedules, EachIsNoSlowerThanTheOneThatItImproves) {
  const auto makespan = [](PipelineScheduleKind kind, int ranks, int micro_batches) {
    // Of a whole rank, so that chunks compare with ranks.
    const double cost = 1.0 / default_num_chunks(kind);
    const auto costs = ScheduleCosts().forward({cost}).backward_input({cost}).backward_weight({cost});
    return simulate(make_pipeline_schedule(kind, {ranks, micro_batches}), costs).makespan;
  };
  for (const PipelineShape& shape : shapes_up_to(PipelineScheduleKind::kGPipe, kRanks, kMicroBatches, 1)) {
    const int p = shape.num_ranks;
    const int m = shape.num_micro_batches;
    const double taking_turns = makespan(PipelineScheduleKind::kOneForwardOneBackward, p, m);
    const double half_empty = makespan(PipelineScheduleKind::kZeroBubbleH1, p, m);
    ASSERT_LE(taking_turns, makespan(PipelineScheduleKind::kGPipe, p, m)) << text_of(shape);
    ASSERT_LE(makespan(PipelineScheduleKind::kInterleaved, p, m), taking_turns) << text_of(shape);
    ASSERT_LE(half_empty, taking_turns) << text_of(shape);
    ASSERT_LE(makespan(PipelineScheduleKind::kZeroBubbleV, p, m), half_empty) << text_of(shape);
  }
}

}  // namespace
}  // namespace tessera::testing
