#include "store/request_handler.h"

#include <gtest/gtest.h>

#include <limits>

namespace tessera::store {
namespace {

using Answers = std::vector<std::pair<ConnectionId, Response>>;

class RequestHandlerTest : public ::testing::Test {
 protected:
  void ask(ConnectionId connection, std::uint64_t id, Operation operation, std::vector<std::string> fields,
           std::int64_t number = 0) {
    handler_.handle(connection, Request{id, operation, number, std::move(fields)});
  }
  Answers taken() { return std::exchange(answers_, {}); }

  Answers answers_;
  RequestHandler handler_{
      [this](ConnectionId id, Response response) { answers_.emplace_back(id, std::move(response)); }};
};

TEST_F(RequestHandlerTest, AnswersAWaitWhenTheLastKeyComes) {
  ask(1, 10, Operation::kWait, {"a", "b", "a"});
  ask(2, 20, Operation::kSet, {"b", ""});
  EXPECT_EQ(taken(), (Answers{{2, {20, Status::kDone, 0, {}}}}));
  ask(2, 21, Operation::kSet, {"a", ""});
  EXPECT_EQ(taken(), (Answers{{1, {10, Status::kDone, 0, {}}}, {2, {21, Status::kDone, 0, {}}}}));
  EXPECT_EQ(handler_.table().num_waits(), 0U);
}

TEST_F(RequestHandlerTest, WaitsAgainForAKeyThatWasDeletedMeanwhile) {
  ask(1, 10, Operation::kGet, {"a", "b"});
  ask(2, 20, Operation::kSet, {"a", "1"});
  ask(2, 21, Operation::kDeleteKey, {"a"});
  ask(2, 22, Operation::kSet, {"b", "2"});
  taken();
  ask(2, 23, Operation::kSet, {"a", "3"});
  EXPECT_EQ(taken(), (Answers{{1, {10, Status::kDone, 0, {"3", "2"}}}, {2, {23, Status::kDone, 0, {}}}}));
}

TEST_F(RequestHandlerTest, CancelsOnceAndNamesWhatIsMissing) {
  ask(1, 10, Operation::kGet, {"a", "b"});
  ask(2, 20, Operation::kSet, {"a", "1"});
  taken();
  ask(1, 0, Operation::kCancel, {}, 10);
  EXPECT_EQ(taken(), (Answers{{1, {10, Status::kCancelled, 0, {"b"}}}}));
  EXPECT_EQ(handler_.table().num_awaited_keys(), 0U);
  ask(1, 0, Operation::kCancel, {}, 10);
  ask(2, 21, Operation::kSet, {"b", "2"});
  EXPECT_EQ(taken(), (Answers{{2, {21, Status::kDone, 0, {}}}}));
}

TEST_F(RequestHandlerTest, DoesNotCancelForOthers) {
  ask(1, 10, Operation::kWait, {"a"});
  ask(2, 0, Operation::kCancel, {}, 10);
  EXPECT_TRUE(answers_.empty());
  EXPECT_EQ(handler_.table().num_waits(), 1U);
}

TEST_F(RequestHandlerTest, ForgetsTheWaitsOfAConnectionThatEnded) {
  ask(1, 10, Operation::kWait, {"a"});
  ask(1, 11, Operation::kGet, {"a", "b"});
  ask(2, 20, Operation::kWait, {"a"});
  handler_.disconnect(1);
  EXPECT_EQ(handler_.table().num_waits(), 1U);
  EXPECT_EQ(handler_.table().num_awaited_keys(), 1U);
  ask(3, 30, Operation::kSet, {"a", ""});
  EXPECT_EQ(taken(), (Answers{{2, {20, Status::kDone, 0, {}}}, {3, {30, Status::kDone, 0, {}}}}));
}

TEST_F(RequestHandlerTest, SetsLeasedKeysWhenTheConnectionEnds) {
  ask(1, 10, Operation::kLease, {"kept", "dead"});
  ask(1, 11, Operation::kLease, {"given back", "dead"});
  ask(1, 12, Operation::kRelease, {"given back"});
  ask(1, 13, Operation::kRelease, {"never held"});
  ask(2, 20, Operation::kGet, {"kept"});
  EXPECT_EQ(answers_[2].second.number, 1);
  EXPECT_EQ(answers_[3].second.number, 0);
  taken();
  handler_.disconnect(1);
  EXPECT_EQ(taken(), (Answers{{2, {20, Status::kDone, 0, {"dead"}}}}));
  EXPECT_EQ(handler_.table().find("given back"), nullptr);
}

TEST_F(RequestHandlerTest, RefusesASecondWaitOfTheSameNumber) {
  ask(1, 10, Operation::kWait, {"a"});
  ask(1, 10, Operation::kGet, {"a"});
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].second.status, Status::kRefused);
}

TEST_F(RequestHandlerTest, RefusesToCountWhatIsNoNumberOrBeyondItsRange) {
  for (const char* text : {"", "abc", "1x", " 1", "9223372036854775808"}) {
    ask(1, 1, Operation::kSet, {"key", text});
    taken();
    ask(1, 2, Operation::kAdd, {"key"}, 1);
    EXPECT_EQ(taken()[0].second.status, Status::kRefused) << text;
  }
  ask(1, 1, Operation::kSet, {"key", "9223372036854775807"});
  taken();
  ask(1, 2, Operation::kAdd, {"key"}, 1);
  EXPECT_EQ(taken()[0].second.status, Status::kRefused);
  EXPECT_EQ(*handler_.table().find("key"), "9223372036854775807");
}

TEST_F(RequestHandlerTest, RefusesValuesThatNoMessageCouldCarry) {
  const std::string half(kMaxFrameBytes / 2, 'x');
  ask(1, 1, Operation::kSet, {"a", half});
  ask(1, 2, Operation::kSet, {"b", half});
  taken();
  ask(1, 3, Operation::kGet, {"a", "b"});
  ask(1, 4, Operation::kAppend, {"a", half});
  ask(1, 5, Operation::kGet, {"a"});
  const auto found = taken();
  EXPECT_EQ(found[0].second.status, Status::kRefused);
  EXPECT_EQ(found[1].second.status, Status::kRefused);
  EXPECT_EQ(found[2].second.status, Status::kDone);
}

TEST_F(RequestHandlerTest, QuotesOnlyTheBeginningOfALongKey) {
  const std::string key(100'000, 'k');
  ask(1, 1, Operation::kSet, {key, "text"});
  taken();
  ask(1, 2, Operation::kAdd, {key}, 1);
  EXPECT_LT(taken()[0].second.fields[0].size(), 400U);
}

}  // namespace
}  // namespace tessera::store
