#include <tessera/schedule/check_schedule.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = PipelineOperation::Kind;

/// Two ranks, one micro-batch. Rank 0: F >a <g B, rank 1: <a F B >g.
PipelineSchedule small() { return make_pipeline_schedule(PipelineScheduleKind::kGPipe, {2, 1}); }

std::vector<std::string> faults_of(const PipelineSchedule& schedule) { return check_schedule(schedule).faults; }

TEST(CheckSchedule, NamesWhatIsMissing) {
  PipelineSchedule schedule = small();
  schedule.operations[0].erase(schedule.operations[0].begin());
  EXPECT_THAT(faults_of(schedule), ElementsAre("rank 0 lacks Forward of micro-batch 0, stage 0: add it"));
}

TEST(CheckSchedule, NamesTheMessageWithoutAMatch) {
  PipelineSchedule schedule = small();
  schedule.operations[0].erase(schedule.operations[0].begin() + 1);
  EXPECT_THAT(faults_of(schedule),
              ElementsAre("rank 0 lacks SendActivation of micro-batch 0, stage 0, to rank 1: rank 1, operation 0 "
                          "(RecvActivation of micro-batch 0, stage 1, from rank 0) has no match without it"));
}

TEST(CheckSchedule, NamesWhatIsThereTwice) {
  PipelineSchedule schedule = small();
  schedule.operations[1].push_back(schedule.operations[1][3]);
  EXPECT_THAT(faults_of(schedule), ElementsAre("rank 1, operation 4 (SendGradient of micro-batch 0, stage 1, to rank "
                                               "0) is operation 3 again: remove one"));
}

TEST(CheckSchedule, NamesTheRightPeer) {
  PipelineSchedule schedule = make_pipeline_schedule(PipelineScheduleKind::kGPipe, {3, 1});
  schedule.operations[0][1].peer = 2;
  EXPECT_THAT(faults_of(schedule),
              ElementsAre("rank 0, operation 1 (SendActivation of micro-batch 0, stage 0, to rank 2): the other stage "
                          "is on rank 1: make that the peer",
                          HasSubstr("rank 0 lacks SendActivation of micro-batch 0, stage 0, to rank 1")));
}

TEST(CheckSchedule, NamesWhatComesTooSoon) {
  PipelineSchedule schedule = small();
  std::swap(schedule.operations[1][0], schedule.operations[1][1]);
  EXPECT_THAT(faults_of(schedule),
              ElementsAre("rank 1, operation 0 (Forward of micro-batch 0, stage 1) comes before operation 1 "
                          "(RecvActivation of micro-batch 0, stage 1, from rank 0), which it needs: move it behind"));
}

TEST(CheckSchedule, NamesOperationsOutOfRange) {
  PipelineSchedule schedule = small();
  schedule.operations[0].push_back({Kind::kForward, 1, 0});
  schedule.operations[0].push_back({Kind::kForward, 0, 2});
  schedule.operations[0].push_back({Kind::kForward, 0, 1});
  schedule.operations[0].push_back({Kind::kForward, 0, 0, 1});
  schedule.operations[0].push_back({Kind::kRecvActivation, 0, 0, 1});
  EXPECT_THAT(faults_of(schedule),
              ElementsAre(HasSubstr("operation 4 (Forward of micro-batch 1, stage 0): there are 1 micro-batches"),
                          HasSubstr("there are 2 stages"), HasSubstr("the stage is on rank 1"),
                          HasSubstr("a computation has no peer"), HasSubstr("there is no stage to talk to")));
}

TEST(CheckSchedule, WantsTheBackwardWholeOrInBothHalves) {
  PipelineSchedule schedule = small();
  schedule.operations[0][3].kind = Kind::kBackwardInput;
  EXPECT_THAT(faults_of(schedule), ElementsAre(HasSubstr("rank 0 lacks BackwardWeight of micro-batch 0, stage 0")));
  schedule.operations[0].push_back({Kind::kBackwardWeight, 0, 0});
  EXPECT_THAT(faults_of(schedule), IsEmpty());
  std::swap(schedule.operations[0][3], schedule.operations[0][4]);
  EXPECT_THAT(faults_of(schedule), ElementsAre(HasSubstr("BackwardWeight of micro-batch 0, stage 0) comes before")));
  schedule.operations[0].push_back({Kind::kBackward, 0, 0});
  EXPECT_THAT(faults_of(schedule), ::testing::Contains(HasSubstr("a whole Backward of it too")));
}

TEST(CheckSchedule, AcceptsWholeAndHalvedBackwardsTogether) {
  PipelineSchedule schedule = make_pipeline_schedule(PipelineScheduleKind::kZeroBubbleV, {1, 1});
  // F0.0 F0.1 I0.1 W0.1 I0.0 W0.0
  auto& operations = schedule.operations[0];
  operations = {operations[0], operations[1], {Kind::kBackward, 0, 1}, operations[4], operations[5]};
  EXPECT_THAT(faults_of(schedule), IsEmpty());
  std::swap(operations[2], operations[3]);
  EXPECT_THAT(faults_of(schedule),
              ElementsAre(HasSubstr("comes before operation 3 (Backward of micro-batch 0, stage 1)")));
}

TEST(CheckSchedule, NamesTheRanksThatWaitForEachOther) {
  PipelineSchedule schedule = make_pipeline_schedule(PipelineScheduleKind::kRoundRobin, {2, 2});
  // Rank 0 wants the gradient of micro-batch 1 before it sends micro-batch 0, and rank 1 begins with micro-batch 0.
  auto& operations = schedule.operations[0];
  std::rotate(operations.begin(), operations.begin() + 6, operations.begin() + 7);
  EXPECT_THAT(faults_of(schedule),
              ElementsAre("deadlock: rank 0, operation 0 (RecvGradient of micro-batch 1, stage 0, from rank 1) waits "
                          "for ever: rank 1 sends it in its operation 7, and is stuck in operation 0",
                          "deadlock: rank 1, operation 0 (RecvActivation of micro-batch 0, stage 1, from rank 0) waits "
                          "for ever: rank 0 sends it in its operation 2, and is stuck in operation 0"));
}

TEST(CheckSchedule, NamesFaultsOfThePlacement) {
  EXPECT_THAT(faults_of({}), ElementsAre(HasSubstr("no lists"), HasSubstr("0 micro-batches")));
  PipelineSchedule schedule = small();
  schedule.rank_of_stage = {0, 2};
  EXPECT_THAT(faults_of(schedule),
              ElementsAre(HasSubstr("stage 1 is on rank 2, and there are 2 lists"), HasSubstr("rank 1 has no stage")));
}

TEST(CheckSchedule, CountsActivationsUntilInputsAndUntilWeights) {
  const auto peaks = [](PipelineScheduleKind kind) {
    return check_schedule(make_pipeline_schedule(kind, {4, 8})).peaks;
  };
  using Peak = PeakActivations;
  EXPECT_THAT(peaks(PipelineScheduleKind::kGPipe), ElementsAre(Peak{8, 8}, Peak{8, 8}, Peak{8, 8}, Peak{8, 8}));
  EXPECT_THAT(peaks(PipelineScheduleKind::kOneForwardOneBackward),
              ElementsAre(Peak{4, 4}, Peak{3, 3}, Peak{2, 2}, Peak{1, 1}));
  EXPECT_THAT(peaks(PipelineScheduleKind::kZeroBubbleH1), ElementsAre(Peak{4, 4}, Peak{3, 4}, Peak{2, 4}, Peak{1, 4}));
}

}  // namespace
}  // namespace tessera::testing
