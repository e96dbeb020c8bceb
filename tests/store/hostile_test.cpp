#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <random>

#include "store/channel.h"
#include "store/local_store.h"
#include "store/moved_store.h"
#include "store/raw_connection.h"

namespace tessera::store {
namespace {

using testing::eventually;
using testing::LocalStore;
using testing::MovedStore;
using testing::RawConnection;
using Clock = std::chrono::steady_clock;

std::size_t num_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

/// What a client that has the secret said from its first byte to its last.
std::vector<std::string> recorded_conversation(const Secret& secret) {
  const ChannelContext client_context(ChannelRole::kClient, secret);
  const ChannelContext server_context(ChannelRole::kServer, secret);
  Channel client(client_context);
  Channel server(server_context);
  std::vector<std::string> said;
  std::string ignored;
  for (int i = 0; i < 3; ++i) {
    if (i == 2) client.send(std::string(100, 'x'));
    said.emplace_back(client.output());
    client.sent(said.back().size());
    server.receive(said.back(), ignored);
    const std::string answer(server.output());
    server.sent(answer.size());
    client.receive(answer, ignored);
  }
  return said;
}

/// One connection of somebody who does not have the secret but has listened.
void attack(int port, const std::vector<std::string>& recorded, std::mt19937& random) {
  const RawConnection connection(port);
  std::string bytes;
  switch (random() % 5) {
    case 0:
      bytes.resize(random() % 3000);
      for (char& byte : bytes) byte = static_cast<char>(random());
      break;
    case 1:
      bytes = recorded[0].substr(0, random() % recorded[0].size());
      break;
    case 2:
      bytes = recorded[0];
      bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
      break;
    case 3:
      for (const auto& part : recorded) bytes += part;
      break;
    default:
      break;  // connects and leaves
  }
  connection.send(bytes);
  if (random() % 8 == 0) connection.receive(std::chrono::milliseconds(1));
}

TEST(HostileClients, TenThousandConnectionsDisturbNeitherCountsNorDescriptors) {
  constexpr int kNumConnections = 10'000;
  constexpr std::chrono::seconds kMost{20};
  ServerOptions options;
  options.strangers_share = 1;  // all are let in, as fast as they come
  const LocalStore local(options);
  const auto recorded = recorded_conversation(local.secret);
  StoreClient client = local.client();
  StoreClient witness = local.client();
  witness.set("untouched", "value");
  const std::size_t before = num_descriptors();

  std::atomic<bool> finished = false;
  std::int64_t num_adds = 0;
  bool counts_right = true;
  std::thread adding([&] {
    while (!finished) counts_right = client.add("counter", 1) == ++num_adds && counts_right;
  });
  // NOLINTNEXTLINE(bugprone-random-generator-seed): the same attacks each time, so that a failure can be repeated
  std::mt19937 random(20240607);
  int num_connections = 0;
  const auto deadline = Clock::now() + kMost;
  while (num_connections < kNumConnections && Clock::now() < deadline) {
    attack(local.server.port(), recorded, random);
    ++num_connections;
  }
  finished = true;
  adding.join();

  EXPECT_TRUE(counts_right);
  EXPECT_GT(num_adds, 100);
  EXPECT_EQ(witness.add("counter", 0), num_adds);
  EXPECT_EQ(witness.try_get("untouched"), "value");
  EXPECT_EQ(witness.num_keys(), 2);
  EXPECT_EQ(local.server.num_clients(), 2U);
  EXPECT_TRUE(eventually([&] { return num_descriptors() == before; })) << num_descriptors() << " of " << before;
  RecordProperty("connections", num_connections);
  RecordProperty("adds", std::to_string(num_adds));
  EXPECT_EQ(num_connections, kNumConnections) << "the machine was too slow to make all of them in time";
}

TEST(HostileClients, WaitOutsideWhenTheyCostTooMuchAndDoNotKeepClientsOut) {
  ServerOptions options;
  options.strangers_share = 0.002;  // saves up ten milliseconds, and needs half a second to earn one
  MovedStore store(options);
  const auto recorded = recorded_conversation(store.secret());
  StoreClient client = store.client();
  std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed)
  // A stranger is refused within milliseconds, until they have taken more than their share.
  const auto is_refused_at_once = [&] {
    const RawConnection connection(store.port());
    connection.send("who are you?");
    bool ended = false;
    connection.receive(std::chrono::milliseconds(200), &ended);
    return ended;
  };
  EXPECT_TRUE(is_refused_at_once());
  int num_attacks = 0;
  bool waits = false;
  for (; num_attacks < 5000 && !waits; num_attacks += 100) {
    for (int i = 0; i < 100; ++i) attack(store.port(), recorded, random);
    waits = !is_refused_at_once();
  }
  EXPECT_TRUE(waits) << "after " << num_attacks << " attacks";
  const auto begin = Clock::now();
  for (int i = 0; i < 200; ++i) client.add("counter", 1);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
  auto late = std::async(std::launch::async, [&] { return store.client().add("counter", 0); });
  // Those in front of it are let in first, a handful at a time.
  constexpr std::chrono::minutes kMost{10};
  auto waited = Clock::duration::zero();
  for (; waited < kMost && late.wait_for(std::chrono::milliseconds(1)) == std::future_status::timeout;
       waited += std::chrono::seconds(1)) {
    store.move(std::chrono::seconds(1));
  }
  EXPECT_LT(waited, kMost);
  EXPECT_EQ(late.get(), 200);
}

}  // namespace
}  // namespace tessera::store
