#include <tessera/core/error.h>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "store/local_store.h"
#include "store/sockets.h"
#include "support/error_message.h"

namespace tessera::store {
namespace {

using testing::expect_parts;
using testing::kLong;
using testing::LocalStore;
using testing::message_of;

class Operations : public ::testing::Test {
 protected:
  LocalStore local_;
  StoreClient client_ = local_.client();
  StoreClient other_ = local_.client();
};

TEST_F(Operations, OneReadsWhatAnotherSet) {
  const std::string any_bytes("\0\xff\n", 3);
  client_.set("key", any_bytes);
  EXPECT_EQ(other_.get("key", kLong), any_bytes);
  client_.set("key", "");
  EXPECT_EQ(other_.get("key", kLong), "");
  client_.set("", "empty key");
  EXPECT_EQ(other_.get("", kLong), "empty key");
}

TEST_F(Operations, TryGetDoesNotWait) {
  EXPECT_EQ(client_.try_get("key"), std::nullopt);
  client_.set("key", "value");
  EXPECT_EQ(client_.try_get("key"), "value");
}

TEST_F(Operations, AddCountsInDecimalText) {
  EXPECT_EQ(client_.add("counter", 5), 5);
  EXPECT_EQ(other_.add("counter", -7), -2);
  EXPECT_EQ(client_.get("counter", kLong), "-2");
  client_.set("counter", "40");
  EXPECT_EQ(client_.add("counter", 2), 42);
  EXPECT_EQ(client_.add("counter", 0), 42);
}

TEST_F(Operations, AddRefusesWhatIsNoNumber) {
  client_.set("name", "text");
  expect_parts(message_of<ConfigError>([&] { client_.add("name", 1); }), {"\"name\"", "no whole number", "127.0.0.1"});
  EXPECT_EQ(client_.get("name", kLong), "text");
}

TEST_F(Operations, CompareSetFollowsC10d) {
  EXPECT_EQ(client_.compare_set("key", "expected", "new"), "expected");
  EXPECT_FALSE(client_.check({"key"}));
  EXPECT_EQ(client_.compare_set("key", "", "first"), "first");
  EXPECT_EQ(client_.compare_set("key", "wrong", "second"), "first");
  EXPECT_EQ(client_.compare_set("key", "", "second"), "first");
  EXPECT_EQ(client_.compare_set("key", "first", "second"), "second");
  EXPECT_EQ(client_.get("key", kLong), "second");
}

TEST_F(Operations, AppendStartsWithNothing) {
  client_.append("log", "ab");
  other_.append("log", "cd");
  EXPECT_EQ(client_.get("log", kLong), "abcd");
}

TEST_F(Operations, CheckWantsAllKeys) {
  client_.set("a", "");
  EXPECT_TRUE(client_.check({"a"}));
  EXPECT_FALSE(client_.check({"a", "b"}));
  EXPECT_TRUE(client_.check({}));
}

TEST_F(Operations, DeletesAndCounts) {
  client_.multi_set({{"run/1", "a"}, {"run/2", "b"}, {"runner", "c"}, {"other", "d"}});
  EXPECT_EQ(client_.num_keys(), 4);
  EXPECT_TRUE(client_.delete_key("other"));
  EXPECT_FALSE(client_.delete_key("other"));
  EXPECT_EQ(other_.delete_prefix("run/"), 2);
  EXPECT_EQ(client_.num_keys(), 1);
  EXPECT_TRUE(client_.check({"runner"}));
  EXPECT_EQ(client_.delete_prefix(""), 1);
  EXPECT_EQ(client_.num_keys(), 0);
}

TEST_F(Operations, MultiGetKeepsTheOrder) {
  client_.multi_set({{"a", "1"}, {"b", "2"}, {"c", "3"}});
  EXPECT_EQ(other_.multi_get({"c", "a", "c"}, kLong), (std::vector<std::string>{"3", "1", "3"}));
  EXPECT_TRUE(other_.multi_get({}, kLong).empty());
}

TEST_F(Operations, CarryAValueOfSixtyMebibytes) {
  std::string value(std::size_t{60} << 20, '\0');
  for (std::size_t i = 0; i < value.size(); i += 4093) value[i] = static_cast<char>(i % 251);
  client_.set("large", value);
  EXPECT_TRUE(other_.get("large", kLong) == value);
  EXPECT_EQ(client_.add("still", 1), 1);
}

TEST_F(Operations, RefuseAValueThatIsTooLargeAndGoOn) {
  EXPECT_THROW(client_.set("key", std::string(std::size_t{64} << 20, 'x')), ConfigError);
  EXPECT_THROW(client_.wait(std::vector<std::string>(1 << 20), kLong), ConfigError);
  EXPECT_EQ(client_.add("still", 1), 1);
}

TEST_F(Operations, OneClientServesManyThreads) {
  constexpr int kNumThreads = 8;
  constexpr int kAdds = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kAdds; ++k) client_.add("counter", 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(client_.add("counter", 0), kNumThreads * kAdds);
}

TEST_F(Operations, FailAfterCloseAndNameTheStore) {
  client_.close();
  expect_parts(message_of<CommError>([&] { client_.set("key", "value"); }),
               {"127.0.0.1:" + std::to_string(local_.server.port()), "closed by this process"});
  EXPECT_EQ(other_.num_keys(), 0);
}

TEST(StoreServer, ServesOnASocketThatListensAlready) {
  const Secret secret = Secret::mint();
  Descriptor listener = listen_on("127.0.0.1", 0);
  const int port = port_of(listener);
  const StoreServer server(dup(listener.get()), secret);
  listener.reset();
  EXPECT_EQ(server.port(), port);
  StoreClient client = StoreClient::connect("127.0.0.1", port, secret, kLong);
  EXPECT_EQ(client.add("counter", 1), 1);
}

TEST(StoreServer, RefusesADescriptorThatDoesNotListen) {
  EXPECT_THROW(StoreServer(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), Secret::mint()), ConfigError);
  EXPECT_THROW(StoreServer(-1, Secret::mint()), ConfigError);
}

TEST(StoreServer, RefusesAnAddressThatIsNotOurs) {
  EXPECT_THROW(StoreServer("192.0.2.1", 0, Secret::mint()), ConfigError);
  EXPECT_THROW(StoreServer("", 0, Secret::mint()), ConfigError);
  EXPECT_THROW(StoreServer("127.0.0.1", 70'000, Secret::mint()), ConfigError);
  const StoreServer first("127.0.0.1", 0, Secret::mint());
  expect_parts(message_of<ConfigError>([&] { StoreServer("127.0.0.1", first.port(), Secret::mint()); }),
               {"127.0.0.1:" + std::to_string(first.port()), "free port"});
}

TEST(StoreServer, RefusesOptionsThatCannotBe) {
  ServerOptions options;
  options.silence_limit = std::chrono::milliseconds(0);
  EXPECT_THROW(StoreServer("127.0.0.1", 0, Secret::mint(), options), ConfigError);
  const LocalStore local;
  ClientOptions client_options;
  client_options.ping_interval = client_options.silence_limit;
  EXPECT_THROW(local.client(client_options), ConfigError);
}

TEST(StoreServer, ListensOnTheGivenAddressAlone) {
  const StoreServer server("127.0.0.1", 0, Secret::mint());
  EXPECT_NO_THROW(listen_on("127.0.0.2", server.port()));
}

TEST(StoreServer, EndsQuicklyWithClientsConnected) {
  auto local = std::make_unique<LocalStore>();
  std::vector<StoreClient> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(local->client());
  const auto start = std::chrono::steady_clock::now();
  local.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(500));
  expect_parts(message_of<CommError>([&] { clients[0].num_keys(); }), {"is lost", "restart the job"});
}

}  // namespace
}  // namespace tessera::store
