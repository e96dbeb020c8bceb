#include <tessera/core/error.h>
#include <tessera/schedule/check_schedule.h>
#include <tessera/schedule/pipeline_schedule.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "support/error_message.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = PipelineOperation::Kind;

/// "F0 B0": the computations of a rank, and with messages "F0 >a0": '>' sends and '<' receives, a or g.
std::string listed(const PipelineSchedule& schedule, int rank, bool with_messages = true) {
  constexpr std::array<const char*, 8> kShort = {"F", "B", "I", "W", ">a", "<a", ">g", "<g"};
  std::string text;
  for (const PipelineOperation& operation : schedule.operations.at(static_cast<std::size_t>(rank))) {
    if (!with_messages && !operation.is_computation()) continue;
    if (!text.empty()) text += ' ';
    text += kShort.at(static_cast<std::size_t>(operation.kind)) + std::to_string(operation.micro_batch);
    if (schedule.num_stages() > schedule.num_ranks()) text += "." + std::to_string(operation.stage);
  }
  return text;
}

TEST(PipelineSchedule, HasEveryKindByName) {
  EXPECT_THAT(pipeline_schedule_names(), SizeIs(7));
  for (const auto& [name, kind] : pipeline_schedule_names()) {
    EXPECT_EQ(to_string(kind), name);
    EXPECT_EQ(pipeline_schedule_kind(name), kind);
  }
  EXPECT_EQ(pipeline_schedule_kind("zigzag"), std::nullopt);
}

TEST(PipelineSchedule, SequentialLetsOneStageWorkAtATime) {
  const auto schedule = make_pipeline_schedule(PipelineScheduleKind::kSequential, {2, 2});
  EXPECT_EQ(listed(schedule, 0), "F0 F1 >a0 >a1 <g1 <g0 B1 B0");
  EXPECT_EQ(listed(schedule, 1), "<a0 <a1 F0 F1 B1 B0 >g1 >g0");
}

TEST(PipelineSchedule, RoundRobinBringsAMicroBatchBackBeforeTheNext) {
  const auto schedule = make_pipeline_schedule(PipelineScheduleKind::kRoundRobin, {2, 2});
  EXPECT_EQ(listed(schedule, 0), "F0 >a0 <g0 B0 F1 >a1 <g1 B1");
  EXPECT_EQ(listed(schedule, 1), "<a0 F0 B0 >g0 <a1 F1 B1 >g1");
}

TEST(PipelineSchedule, GPipeDoesAllForwardsFirst) {
  const auto schedule = make_pipeline_schedule(PipelineScheduleKind::kGPipe, {2, 2});
  EXPECT_EQ(listed(schedule, 0), "F0 >a0 F1 >a1 <g0 B0 <g1 B1");
  EXPECT_EQ(listed(schedule, 1), "<a0 F0 <a1 F1 B0 >g0 B1 >g1");
}

TEST(PipelineSchedule, OneForwardOneBackwardTakesTurns) {
  const auto schedule = make_pipeline_schedule(PipelineScheduleKind::kOneForwardOneBackward, {3, 4});
  EXPECT_EQ(listed(schedule, 0, false), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(listed(schedule, 1, false), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(listed(schedule, 2, false), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(PipelineSchedule, InterleavedGoesRoundTheRanks) {
  const auto schedule = make_pipeline_schedule(PipelineScheduleKind::kInterleaved, {2, 2, 2});
  EXPECT_THAT(schedule.rank_of_stage, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(listed(schedule, 0, false), "F0.0 F1.0 F0.2 F1.2 B0.2 B1.2 B0.0 B1.0");
  EXPECT_EQ(listed(schedule, 1, false), "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 B0.1 B1.1");
}

TEST(PipelineSchedule, InterleavedNeedsNoFullGroups) {
  const auto schedule = make_pipeline_schedule(PipelineScheduleKind::kInterleaved, {2, 3, 2});
  EXPECT_EQ(listed(schedule, 1, false), "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 B1.1 F2.3 B2.3 B2.1");
}

TEST(PipelineSchedule, ZeroBubbleH1OwesAsManyWeightGradientsAsThereAreRanksBefore) {
  const auto schedule = make_pipeline_schedule(PipelineScheduleKind::kZeroBubbleH1, {2, 3});
  EXPECT_EQ(listed(schedule, 0, false), "F0 F1 I0 W0 F2 I1 W1 I2 W2");
  EXPECT_EQ(listed(schedule, 1, false), "F0 I0 F1 I1 W0 F2 I2 W1 W2");
}

TEST(PipelineSchedule, ZeroBubbleVTurnsWithoutAMessage) {
  const auto schedule = make_pipeline_schedule(PipelineScheduleKind::kZeroBubbleV, {2, 1});
  EXPECT_THAT(schedule.rank_of_stage, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(listed(schedule, 0), "F0.0 >a0.0 <a0.3 F0.3 I0.3 >g0.3 W0.3 <g0.0 I0.0 W0.0");
  EXPECT_EQ(listed(schedule, 1), "<a0.1 F0.1 F0.2 >a0.2 <g0.2 I0.2 W0.2 I0.1 >g0.1 W0.1");
}

TEST(PipelineSchedule, OneRankSendsNothing) {
  for (const auto& [name, kind] : pipeline_schedule_names()) {
    const auto schedule = make_pipeline_schedule(kind, {1, 3});
    for (const PipelineOperation& operation : schedule.operations.at(0)) {
      EXPECT_TRUE(operation.is_computation()) << name << ": " << to_string(operation);
    }
  }
}

TEST(PipelineSchedule, NamesThePeersOfMessages) {
  const auto schedule = make_pipeline_schedule(PipelineScheduleKind::kInterleaved, {2, 1, 2});
  EXPECT_EQ(to_string(schedule.operations[0][1]), "SendActivation of micro-batch 0, stage 0, to rank 1");
  EXPECT_EQ(to_string(schedule.operations[0][2]), "RecvActivation of micro-batch 0, stage 2, from rank 1");
}

TEST(PipelineSchedule, GivesTheEndsOfAMessageTheSameId) {
  const auto message = [](Kind kind, int stage, int peer) { return PipelineOperation{kind, 3, stage, peer}.message(); };
  EXPECT_EQ(message(Kind::kSendActivation, 1, 2), message(Kind::kRecvActivation, 2, 1));
  EXPECT_EQ(message(Kind::kSendGradient, 2, 1), message(Kind::kRecvGradient, 1, 2));
  EXPECT_NE(message(Kind::kSendActivation, 1, 2), message(Kind::kSendGradient, 1, 0));
  EXPECT_THROW(message(Kind::kForward, 1, -1), InternalError);
}

TEST(PipelineSchedule, RefusesWithAllFaultsAtOnce) {
  const auto refusal = [](PipelineScheduleKind kind, const PipelineShape& shape) {
    return message_of<ConfigError>([&] { make_pipeline_schedule(kind, shape); });
  };
  EXPECT_EQ(refusal(PipelineScheduleKind::kOneForwardOneBackward, {0, -1, 2}),
            "there is no 1f1b schedule for this pipeline:\n"
            "  - 0 ranks: use 1 to 1024\n"
            "  - -1 micro-batches: use 1 or more\n"
            "  - 2 chunks a rank: 1f1b has 1; leave the number out, or use interleaved");
  expect_parts(refusal(PipelineScheduleKind::kZeroBubbleV, {2, 2, 3}), {"zb-v has 2"});
  expect_parts(refusal(PipelineScheduleKind::kInterleaved, {2, 2, 0}), {"0 chunks a rank: use 1 or more"});
  expect_parts(refusal(PipelineScheduleKind::kGPipe, {1024, 1 << 20}), {"use fewer", "16777216 at most"});
  EXPECT_THAT(shape_faults(std::nullopt, {1, 1, 7}), IsEmpty());
}

}  // namespace
}  // namespace tessera::testing
