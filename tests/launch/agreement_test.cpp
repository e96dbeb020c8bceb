#include "launch/agreement.h"

#include <gtest/gtest.h>

#include <csignal>

#include "support/error_message.h"

namespace tessera::launch {
namespace {

using testing::expect_parts;

Node node(int node_rank, int num_nodes = 3, int num_ranks = 2, const std::string& id = "") {
  return {node_rank,
          num_nodes,
          num_ranks,
          node_rank == 0 ? 4711 : 0,
          id.empty() ? std::to_string(node_rank) + "x" : id,
          "host" + std::to_string(node_rank)};
}

/// As node 1 of 3 sees it, once all are there.
Agreement gathered() {
  Agreement agreement(node(1));
  for (const int rank : {2, 0, 1}) agreement.take(Agreement::joined(node(rank, 3, rank + 1)));
  return agreement;
}

TEST(Agreement, NumbersRanksOnceAllNodesAreThere) {
  Agreement agreement(node(1));
  agreement.take(Agreement::joined(node(2, 3, 3)));
  agreement.take(Agreement::joined(node(1, 3, 2)));
  EXPECT_EQ(agreement.missing(), (std::vector<int>{0, 1, 2}));  // who came is judged by what node 0 says
  agreement.take(Agreement::joined(node(0, 3, 1)));
  ASSERT_TRUE(agreement.all_present());
  EXPECT_EQ(agreement.first_rank(1), 1);
  EXPECT_EQ(agreement.first_rank(2), 3);
  EXPECT_EQ(agreement.world_size(), 6);
  EXPECT_EQ(agreement.master_port(), 4711);
  EXPECT_EQ(agreement.refusal(), "");
}

TEST(Agreement, RefusesTheSecondOfTheSameNumber) {
  Agreement first(node(1, 2, 1, "a"));
  Agreement second(node(1, 2, 1, "b"));
  for (Agreement* agreement : {&first, &second}) {
    agreement->take(Agreement::joined(node(0, 2)));
    agreement->take(Agreement::joined(node(1, 2, 1, "a")));
    EXPECT_EQ(agreement->all_present(), agreement == &first);  // the other must not start, though the job can
    agreement->take(Agreement::joined(node(1, 2, 1, "b")));
  }
  EXPECT_EQ(first.refusal(), "");
  expect_parts(second.refusal(), {"node_rank 1", "host1"});
  EXPECT_NE(second.refusal(), "");
}

TEST(Agreement, RefusesWhoExpectsAnotherNumberOfNodes) {
  Agreement other(node(1, 3));
  Agreement zero(node(0, 2));
  for (Agreement* agreement : {&other, &zero}) {
    agreement->take(Agreement::joined(node(1, 3)));
    agreement->take(Agreement::joined(node(0, 2)));
  }
  EXPECT_NE(other.refusal(), "");
  expect_parts(other.refusal(), {"nnodes", "expected 2", "found 3"});
  EXPECT_EQ(zero.refusal(), "");
  EXPECT_EQ(zero.missing(), std::vector<int>{1});
}

TEST(Agreement, TakesTheFirstFailureOfTheGeneration) {
  Agreement agreement = gathered();
  EXPECT_EQ(agreement.failure(0), nullptr);
  agreement.take(Agreement::failed(0, {2, 5, 7, false, "exited with code 7"}));
  agreement.take(Agreement::failed(0, {0, 0, 3, false, "exited with code 3"}));
  ASSERT_NE(agreement.failure(0), nullptr);
  EXPECT_EQ(agreement.failure(0)->rank, 5);
  EXPECT_EQ(agreement.failure(0)->meaning, "exited with code 7");
  agreement.take(Agreement::restarted(1));
  EXPECT_EQ(agreement.generation(), 1);
  agreement.take(Agreement::failed(0, {0, 0, 3, false, "late"}));
  EXPECT_EQ(agreement.failure(1), nullptr);
}

TEST(Agreement, IsDoneWhenAllNodesAre) {
  Agreement agreement = gathered();
  agreement.take(Agreement::done(0, 0));
  agreement.take(Agreement::done(0, 1));
  EXPECT_FALSE(agreement.all_done());
  agreement.take(Agreement::done(0, 1));
  EXPECT_FALSE(agreement.all_done());
  agreement.take(Agreement::done(0, 2));
  EXPECT_TRUE(agreement.all_done());
  agreement.take(Agreement::restarted(1));
  EXPECT_FALSE(agreement.all_done());
}

TEST(Agreement, EndsByWhatCameFirst) {
  Agreement agreement = gathered();
  agreement.take(Agreement::signalled(2, SIGTERM));
  agreement.take_disconnection("gone", 3);
  ASSERT_TRUE(agreement.ending());
  EXPECT_EQ(agreement.ending()->exit_code, 143);
  EXPECT_EQ(agreement.ending()->signal, SIGTERM);
  expect_parts(agreement.ending()->text, {"node 2 (host2)", "SIGTERM"});
}

TEST(Agreement, EndsWhenANodeIsLostButNotWhenAStrangerIs) {
  Agreement agreement = gathered();
  agreement.take(Agreement::lost("2 stranger"));
  EXPECT_FALSE(agreement.ending());
  agreement.take(Agreement::lost(Agreement::tag(node(2))));
  ASSERT_TRUE(agreement.ending());
  EXPECT_EQ(agreement.ending()->exit_code, 3);
  EXPECT_EQ(agreement.ending()->lost_node, 2);
}

TEST(Agreement, NamesTheNodesThatDidNotCome) {
  Agreement agreement(node(0));
  agreement.take(Agreement::joined(node(0)));
  agreement.take(Agreement::gave_up());
  ASSERT_TRUE(agreement.ending());
  expect_parts(agreement.ending()->text, {"3 nodes", "node 1, 2", "rdzv_timeout"});
}

TEST(Agreement, PassesOverWhatMakesNoSense) {
  Agreement agreement = gathered();
  for (const char* text : {"", "join", "join -7 3 1 0 x y", "join 99 3 1 0 x y", "lost", "lost 99 x", "what", "done"}) {
    agreement.take(text);
  }
  EXPECT_FALSE(agreement.ending());
  EXPECT_TRUE(agreement.all_present());
}

}  // namespace
}  // namespace tessera::launch
