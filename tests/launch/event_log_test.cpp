#include "launch/event_log.h"

#include <tessera/store/server.h>

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>

#include "support/error_message.h"

namespace tessera::launch {
namespace {

using std::chrono::seconds;

/// A store, and the logs of launchers that share it.
class SharedLog : public ::testing::Test {
 protected:
  EventLogPlace place(const std::string& writer, bool is_host = false) const {
    return {"127.0.0.1", server_->port(), secret_, seconds(10), writer, "tag of " + writer, is_host};
  }

  store::Secret secret_ = store::Secret::mint();
  std::unique_ptr<store::StoreServer> server_ = std::make_unique<store::StoreServer>("127.0.0.1", 0, secret_);
};

/// What comes until there are `count` events, or the connection is lost.
EventLog::News news_of(EventLog& log, std::size_t count) {
  EventLog::News all;
  const auto deadline = std::chrono::steady_clock::now() + seconds(20);
  while (all.events.size() < count && !all.disconnection && std::chrono::steady_clock::now() < deadline) {
    pollfd entry{log.descriptor(), POLLIN, 0};
    poll(&entry, 1, 100);
    EventLog::News some = log.take();
    all.events.insert(all.events.end(), some.events.begin(), some.events.end());
    all.disconnection = some.disconnection;
  }
  return all;
}

TEST_F(SharedLog, IsReadInTheSameOrderByAll) {
  constexpr int kEach = 20;
  EventLog host(place("h", true));
  EventLog one(place("a"));
  EventLog other(place("b"));
  for (int i = 0; i < kEach; ++i) {
    host.append("host " + std::to_string(i));
    one.append("same");
    other.append("same");
  }
  const auto first = news_of(host, 3 * kEach).events;
  ASSERT_EQ(first.size(), 3U * kEach);
  EXPECT_EQ(news_of(one, 3 * kEach).events, first);
  EXPECT_EQ(news_of(other, 3 * kEach).events, first);
  EventLog late(place("c"));
  EXPECT_EQ(news_of(late, 3 * kEach).events, first);
}

TEST_F(SharedLog, TellsOfAWriterThatIsGoneButNotOfOneThatLeft) {
  EventLog host(place("h", true));
  EventLog left(place("a"));
  left.append("here");
  EXPECT_EQ(news_of(host, 1).events, std::vector<std::string>{"here"});
  left.leave();
  auto gone = std::make_unique<EventLog>(place("b"));
  gone->append("here too");
  EXPECT_EQ(news_of(host, 1).events, std::vector<std::string>{"here too"});
  gone.reset();
  EXPECT_EQ(news_of(host, 1).events, std::vector<std::string>{"lost tag of b"});
}

TEST_F(SharedLog, LeavesOnlyAfterEverythingIsWritten) {
  EventLog host(place("h", true));
  EventLog writer(place("a"));
  writer.append("here");
  ASSERT_EQ(news_of(host, 1).events.size(), 1U);
  for (int i = 0; i < 50; ++i) writer.append(std::to_string(i));
  writer.leave();
  const auto events = news_of(host, 50).events;
  ASSERT_EQ(events.size(), 50U);
  EXPECT_EQ(events.back(), "49");
}

TEST_F(SharedLog, CanBeLeftBeforeTheStoreIsReached) {
  EventLogPlace nowhere = place("a");
  server_.reset();
  EventLog log(nowhere);
  log.append("unheard");
  const auto start = std::chrono::steady_clock::now();
  log.leave();
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
}

TEST_F(SharedLog, TellsWhenTheStoreIsLost) {
  EventLog log(place("a"));
  log.append("here");
  ASSERT_EQ(news_of(log, 1).events.size(), 1U);
  server_.reset();
  const auto news = news_of(log, 1);
  ASSERT_TRUE(news.disconnection);
  EXPECT_EQ(news.disconnection->exit_code, 3);
}

TEST_F(SharedLog, TellsAtOnceThatTheSecretIsWrong) {
  EventLogPlace wrong = place("a");
  wrong.secret = store::Secret::mint();
  EventLog log(wrong);
  const auto news = news_of(log, 1);
  ASSERT_TRUE(news.disconnection);
  testing::expect_parts(news.disconnection->why, {"does not have this secret"});
}

TEST_F(SharedLog, GivesUpAStoreThatIsNotThere) {
  EventLogPlace nowhere = place("a");
  server_.reset();
  nowhere.timeout = std::chrono::milliseconds(300);
  EventLog log(nowhere);
  const auto news = news_of(log, 1);
  ASSERT_TRUE(news.disconnection);
  testing::expect_parts(news.disconnection->why, {"not reached", "300 ms", "firewall"});
}

}  // namespace
}  // namespace tessera::launch
