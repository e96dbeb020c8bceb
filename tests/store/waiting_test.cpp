#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "store/local_store.h"
#include "support/error_message.h"

namespace tessera::store {
namespace {

using std::chrono::milliseconds;
using testing::expect_parts;
using testing::kLong;
using testing::LocalStore;
using testing::message_of;
using Clock = std::chrono::steady_clock;

TEST(Waiting, EndsWhenTheKeyAppearsHoweverItDoes) {
  const LocalStore local;
  StoreClient client = local.client();
  StoreClient other = local.client();
  const std::vector<std::pair<std::string, std::function<void()>>> ways{
      {"set", [&] { other.set("set", ""); }},
      {"multi_set", [&] { other.multi_set({{"x", ""}, {"multi_set", ""}}); }},
      {"add", [&] { other.add("add", 1); }},
      {"append", [&] { other.append("append", ""); }},
      {"compare_set", [&] { other.compare_set("compare_set", "", ""); }},
  };
  for (const auto& [key, way] : ways) {
    auto waiting = std::async(std::launch::async, [&, k = key] { client.wait({k}, kLong); });
    EXPECT_EQ(waiting.wait_for(milliseconds(20)), std::future_status::timeout) << key;
    way();
    EXPECT_NO_THROW(waiting.get()) << key;
  }
}

TEST(Waiting, ThatBlocksDoesNotHoldUpTheSameClient) {
  const LocalStore local;
  StoreClient client = local.client();
  std::vector<std::future<std::string>> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(
        std::async(std::launch::async, [&client, i] { return client.get("key" + std::to_string(i), kLong); }));
  }
  for (int i = 7; i >= 0; --i) client.set("key" + std::to_string(i), std::to_string(i));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(waiting[static_cast<std::size_t>(i)].get(), std::to_string(i));
}

TEST(Waiting, NamesTheMissingKeysAfterTheTimeoutAndLeavesTheConnectionGood) {
  const LocalStore local;
  StoreClient client = local.client();
  client.set("there", "");
  const auto start = Clock::now();
  const std::string message =
      message_of<StoreTimeout>([&] { client.wait({"there", "a", "b", "c", "d", "e"}, milliseconds(100)); });
  const auto took = Clock::now() - start;
  expect_parts(message, {"100 ms", "\"a\", \"b\", \"c\" and 2 more", "127.0.0.1:"});
  EXPECT_EQ(message.find("there"), std::string::npos) << message;
  EXPECT_GE(took, milliseconds(100));
  EXPECT_LT(took, milliseconds(2000));
  EXPECT_THROW(client.get("a", milliseconds(0)), StoreTimeout);
  EXPECT_THROW(client.multi_get({"there", "a"}, milliseconds(1)), StoreTimeout);
  EXPECT_EQ(client.num_keys(), 1);
}

TEST(Waiting, LosesNoAnswerWhenTimeoutAndKeyMeet) {
  const LocalStore local;
  StoreClient client = local.client();
  StoreClient other = local.client();
  int num_found = 0;
  int num_missed = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string key = "key" + std::to_string(i);
    auto setting = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(milliseconds(2));
      other.set(key, "value");
    });
    try {
      EXPECT_EQ(client.get(key, milliseconds(2)), "value");
      ++num_found;
    } catch (const StoreTimeout&) {
      ++num_missed;
    }
    setting.get();
    EXPECT_EQ(client.get(key, kLong), "value");
  }
  EXPECT_EQ(num_found + num_missed, 100);
  RecordProperty("found", num_found);
}

TEST(Waiting, EndsWithTheServer) {
  auto local = std::make_unique<LocalStore>();
  StoreClient client = local->client();
  auto waiting = std::async(std::launch::async, [&] { client.wait({"never"}, kForever); });
  EXPECT_EQ(waiting.wait_for(milliseconds(50)), std::future_status::timeout);
  local.reset();
  EXPECT_THROW(waiting.get(), CommError);
}

TEST(Waiting, EndsWithCloseOfTheSameClient) {
  const LocalStore local;
  StoreClient client = local.client();
  auto waiting = std::async(std::launch::async, [&] { client.wait({"never"}, kForever); });
  EXPECT_EQ(waiting.wait_for(milliseconds(50)), std::future_status::timeout);
  client.close();
  EXPECT_THROW(waiting.get(), CommError);
}

TEST(Waiting, SixtyFourClientsMeetThreeTimes) {
  constexpr int kNumClients = 64;
  const LocalStore local;
  std::atomic<int> num_early = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kNumClients; ++rank) {
    threads.emplace_back([&, rank] {
      StoreClient client = local.client();
      for (int round = 0; round < 3; ++round) {
        const std::string name = "round" + std::to_string(round);
        client.set(name + "/" + std::to_string(rank), std::to_string(rank));
        if (client.add(name + "/count", 1) == kNumClients) client.set(name + "/all", "");
        client.wait({name + "/all"}, kLong);
        if (client.add(name + "/count", 0) != kNumClients) ++num_early;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_early, 0);
  StoreClient client = local.client();
  EXPECT_EQ(client.num_keys(), 3 * (kNumClients + 2));
}

TEST(Connecting, WaitsForAServerThatComesLate) {
  const Secret secret = Secret::mint();
  int port = 0;
  {
    port = StoreServer("127.0.0.1", 0, secret).port();
  }
  auto connecting = std::async(std::launch::async,
                               [&] { return StoreClient::connect("127.0.0.1", port, secret, kLong).add("n", 1); });
  EXPECT_EQ(connecting.wait_for(milliseconds(100)), std::future_status::timeout);
  const StoreServer server("127.0.0.1", port, secret);
  EXPECT_EQ(connecting.get(), 1);
}

TEST(Connecting, ACrowdLargerThanTheServersLimitGetsInAllTheSame) {
  constexpr std::size_t kNumClients = 200;
  ServerOptions options;
  options.max_unauthenticated = 4;
  const LocalStore local(options);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kNumClients; ++i) {
    threads.emplace_back([&] { local.client().add("came", 1); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(local.client().add("came", 0), static_cast<std::int64_t>(kNumClients));
}

TEST(Connecting, SaysWhenNobodyListens) {
  const Secret secret = Secret::mint();
  int port = 0;
  {
    port = StoreServer("127.0.0.1", 0, secret).port();
  }
  const auto start = Clock::now();
  expect_parts(message_of<CommError>([&] { StoreClient::connect("127.0.0.1", port, secret, milliseconds(100)); }),
               {"127.0.0.1:" + std::to_string(port), "100 ms", "refused", "running"});
  EXPECT_LT(Clock::now() - start, milliseconds(2000));
}

TEST(Connecting, RefusesAHostWithoutAnAddress) {
  EXPECT_THROW(StoreClient::connect("no.such.host.invalid", 1, Secret::mint(), milliseconds(100)), ConfigError);
}

}  // namespace
}  // namespace tessera::store
