#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flight/scene.h"

namespace tessera::flight {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Analysis, NamesTheRankThatDidNotCome) {
  Scene scene(4);
  for (int rank = 0; rank < 4; ++rank) scene.call(rank, "all_reduce", 40);
  for (const int rank : {0, 1, 3}) scene.call(rank, "all_reduce", 40);
  scene.leave(2);
  scene.at(2).stack = {"spin() at model.cpp:12", "main at train.cpp:38"};
  const auto report = scene.report();
  ASSERT_EQ(report.findings.size(), 1U);
  const Finding& finding = report.findings[0];
  EXPECT_EQ(finding.ranks, std::vector<int>{2});
  EXPECT_EQ(finding.what,
            "rank 2 has not come to all_reduce #2 of group world, that ranks 0,1,3 wait in at train.cpp:40");
  EXPECT_THAT(all_details(finding), HasSubstr("rank 2 was last in all_reduce #1 of group world"));
  EXPECT_THAT(all_details(finding), HasSubstr("spin() at model.cpp:12"));
}

TEST(Analysis, BlamesADeadRankBeforeThoseWhoWaitForIt) {
  Scene scene(3);
  for (int rank = 0; rank < 3; ++rank) scene.call(rank, "all_reduce", 40);
  for (const int rank : {0, 2}) scene.call(rank, "broadcast", 50);
  scene.leave(1);
  scene.at(1).condition = RankCondition::kDead;
  scene.at(1).detail = "ended by SIGKILL";
  const auto report = scene.report();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].what, "rank 1 is dead: ended by SIGKILL");
  EXPECT_THAT(all_details(report.findings[0]), HasSubstr("ranks 0,2 wait for it in broadcast #2 of group world"));
}

TEST(Analysis, TellsWhatIsMissingFromARankOfWhomNothingIsKnown) {
  Scene scene(2);
  scene.call(0, "all_reduce", 7);
  scene.at(1).condition = RankCondition::kSilent;
  scene.at(1).snapshot.reset();
  const auto report = scene.report();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].what, "rank 1 is silent");
  EXPECT_THAT(all_details(report.findings[0]), HasSubstr("rank 0 waits for it in all_reduce #1"));
}

TEST(Analysis, NamesTheRanksOfALostHostTogether) {
  Scene scene(4);
  for (const int rank : {2, 3}) scene.call(rank, "all_reduce", 7);
  for (const int rank : {0, 1}) {
    scene.at(rank).condition = RankCondition::kSilent;
    scene.at(rank).detail = "node 0 was lost";
    scene.at(rank).snapshot.reset();
  }
  const auto report = scene.report();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].what, "ranks 0,1 are silent: node 0 was lost");
  EXPECT_EQ(report.findings[0].details,
            (std::vector<std::string>{"nothing is known of what ranks 0,1 did",
                                      "ranks 2,3 wait for it in all_reduce #1 of group world at train.cpp:7"}));
}

TEST(Analysis, NamesTheOddOneOutByOperation) {
  Scene scene(3);
  for (const int rank : {0, 2}) scene.call(rank, "all_reduce", 40);
  scene.call(1, "broadcast", 44);
  const auto report = scene.report();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].ranks, std::vector<int>{1});
  EXPECT_EQ(report.findings[0].what, "the ranks of group world disagree on their call #1; the odd one out is rank 1");
  EXPECT_THAT(all_details(report.findings[0]), HasSubstr("rank 1 calls broadcast Float [4] at train.cpp:44"));
}

TEST(Analysis, NamesTheOddOneOutByShapeAndByDtype) {
  for (const bool by_shape : {true, false}) {
    Scene scene(3);
    for (const int rank : {0, 1}) scene.call(rank, "all_reduce", 40);
    scene.call(2, "all_reduce", 40, {by_shape ? 5 : 4}, by_shape ? "Float" : "Double");
    const auto report = scene.report();
    ASSERT_EQ(report.findings.size(), 1U);
    EXPECT_EQ(report.findings[0].ranks, std::vector<int>{2});
  }
}

TEST(Analysis, TakesTheEndOfARefusedRankForAConsequence) {
  Scene scene(3);
  for (const int rank : {0, 1}) scene.call(rank, "all_reduce", 40).state = CallState::kFailed;
  scene.call(2, "barrier", 44).state = CallState::kFailed;
  scene.at(0).condition = RankCondition::kDead;
  scene.at(0).detail = "exit code 2";
  const auto report = scene.report();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].ranks, std::vector<int>{2});
}

TEST(Analysis, BlamesNobodyWhenTwoRanksDisagree) {
  Scene scene(2);
  scene.call(0, "all_reduce", 40);
  scene.call(1, "broadcast", 44);
  EXPECT_THAT(scene.report().findings.at(0).what, Not(HasSubstr("odd one out")));
}

TEST(Analysis, LetsPiecesDifferInShape) {
  Scene scene(2);
  scene.call(0, "all_gather", 40, {3});
  scene.call(1, "all_gather", 40, {5});
  EXPECT_TRUE(scene.report().findings.empty());
}

TEST(Analysis, LetsTheSameCallComeFromDifferentLines) {
  Scene scene(2);
  scene.call(0, "broadcast", 40);
  scene.call(1, "broadcast", 44);
  EXPECT_TRUE(scene.report().findings.empty());
}

TEST(Analysis, ShowsWhereAnEqualCallWasSkipped) {
  Scene scene(2);
  for (const int line : {10, 11, 12, 13}) scene.call(0, "all_reduce", static_cast<std::uint32_t>(line));
  for (const int line : {10, 12, 13}) scene.call(1, "all_reduce", static_cast<std::uint32_t>(line));
  scene.leave(1);
  const auto report = scene.report();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].ranks, std::vector<int>{1});
  EXPECT_THAT(all_details(report.findings[0]),
              HasSubstr("call #2 is the first that the ranks made from different lines"));
}

TEST(Analysis, SeesThatTwoGroupsWaitForEachOther) {
  Scene scene(2);
  scene.call(0, "barrier", 10);
  scene.call(1, "barrier", 20).group = "other";
  for (const int rank : {0, 1}) scene.at(rank).snapshot->groups.push_back({"other", 2, {0, 1}});
  const auto report = scene.report();
  ASSERT_EQ(report.findings.size(), 2U);
  EXPECT_THAT(all_details(report.findings[0]) + all_details(report.findings[1]),
              HasSubstr("rank 1 is in barrier #1 of group other"));
}

TEST(Analysis, AdvisesToWaitWhileTheJobGoesOn) {
  Scene scene(2);
  scene.call(0, "barrier", 10);
  scene.call(1, "barrier", 5);
  scene.call(0, "barrier", 10);
  scene.leave(1);
  EXPECT_THAT(scene.report(false).findings.at(0).advice, HasSubstr("only slow"));
}

TEST(Analysis, FollowsRanksThatWaitForMessagesToTheOneThatWaitsForNothing) {
  Scene scene(4);
  for (int rank = 0; rank < 4; ++rank) scene.call(rank, "barrier", 1);
  scene.receive(3, 2, "RecvActivation of micro-batch 3, stage 3, from rank 2");
  scene.receive(2, 1, "RecvActivation of micro-batch 3, stage 2, from rank 1");
  scene.receive(0, 1, "RecvGradient of micro-batch 1, stage 0, from rank 1");
  scene.leave(1);
  // Received ahead: it is under way, and nobody waits for it.
  scene.call(1, "recv", 51).is_collective = false;
  scene.at(1).snapshot->calls.back().peer = 0;
  scene.at(1).snapshot->task = TaskRecord{"Forward of micro-batch 3, stage 1", 1};
  const auto findings = scene.report().findings;
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].ranks, std::vector{1});
  EXPECT_EQ(findings[0].what, "ranks 0,2,3 wait for messages of rank 1, which is in Forward of micro-batch 3, stage 1");
  const std::string details = all_details(findings[0]);
  EXPECT_THAT(details,
              HasSubstr("rank 2 waits for it in RecvActivation of micro-batch 3, stage 2, from rank 1: recv #2 "
                        "of group pair, from rank 1"));
  EXPECT_THAT(details, Not(HasSubstr("rank 3 waits for it")));
}

TEST(Analysis, TellsInWhatADeadRankWas) {
  Scene scene(2);
  for (int rank = 0; rank < 2; ++rank) scene.call(rank, "barrier", 1);
  scene.receive(1, 0, "RecvActivation of micro-batch 3, stage 1, from rank 0");
  scene.leave(0);
  scene.at(0).condition = RankCondition::kDead;
  scene.at(0).snapshot->task = TaskRecord{"Forward of micro-batch 3, stage 0", 1};
  const auto findings = scene.report().findings;
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].what, "rank 0 is dead");
  EXPECT_THAT(all_details(findings[0]), HasSubstr("rank 0 was in Forward of micro-batch 3, stage 0"));
  EXPECT_THAT(all_details(findings[0]), HasSubstr("rank 1 waits for it in RecvActivation of micro-batch 3, stage 1"));
}

TEST(Analysis, NamesRanksThatWaitForEachOthersMessages) {
  Scene scene(3);
  scene.receive(0, 1, "a");
  scene.receive(1, 0, "b");
  scene.receive(2, 1, "c");
  const auto findings = scene.report().findings;
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].what, "ranks 0,1 wait for messages of each other");
}

TEST(Analysis, LooksFurtherThanToARankThatWaitsInACollective) {
  Scene scene(3);
  for (int rank = 0; rank < 3; ++rank) scene.call(rank, "barrier", 1);
  scene.receive(0, 1, "a");
  scene.call(1, "all_reduce", 7);
  scene.leave(2);
  const auto findings = scene.report().findings;
  ASSERT_FALSE(findings.empty());
  EXPECT_THAT(findings[0].what, HasSubstr("not come to all_reduce"));
}

}  // namespace
}  // namespace tessera::flight
