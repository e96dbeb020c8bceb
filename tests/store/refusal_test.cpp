#include <tessera/core/error.h>
#include <tessera/store/host_secret.h>

#include <gtest/gtest.h>

#include <future>

#include "store/frame_stream.h"
#include "store/local_store.h"
#include "store/protocol.h"
#include "store/raw_connection.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::store {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::expect_parts;
using testing::kLong;
using testing::LocalStore;
using testing::message_of;
using testing::RawConnection;
using testing::TemporaryFolder;
using Clock = std::chrono::steady_clock;

/// Proves the secret over a socket of the test's own, to say then what no client would.
void authenticate(const RawConnection& connection, FrameStream& stream) {
  while (!stream.authenticated()) {
    connection.send(std::string(stream.output()));
    stream.sent(stream.output().size());
    const std::string bytes = connection.receive(milliseconds(50));
    ASSERT_FALSE(stream.ended()) << stream.reason();
    stream.receive(bytes);
  }
  connection.send(std::string(stream.output()));
  stream.sent(stream.output().size());
}

void say(const RawConnection& connection, FrameStream& stream, std::string frame) {
  stream.queue(std::move(frame));
  while (!stream.output().empty()) {
    connection.send(std::string(stream.output()));
    stream.sent(stream.output().size());
  }
}

TEST(Refusal, AWrongSecretIsReportedAtOnceAndChangesNothing) {
  const LocalStore local;
  StoreClient client = local.client();
  client.set("key", "value");
  const auto start = Clock::now();
  expect_parts(
      message_of<CommError>([&] { StoreClient::connect("127.0.0.1", local.server.port(), Secret::mint(), kLong); }),
      {"127.0.0.1:" + std::to_string(local.server.port()), "does not have this secret", "same secret"});
  EXPECT_LT(Clock::now() - start, milliseconds(2000));
  EXPECT_EQ(local.server.num_clients(), 1U);
  EXPECT_EQ(client.num_keys(), 1);
}

TEST(Refusal, AStaleSecretIsReplacedByTheNextThatIsFound) {
  const Secret stale = Secret::mint();
  const LocalStore local;
  int num_asked = 0;
  const SecretSource source = [&]() -> std::optional<Secret> {
    ++num_asked;
    if (num_asked == 1) return std::nullopt;
    return num_asked < 4 ? stale : local.secret;
  };
  StoreClient client = StoreClient::connect("127.0.0.1", local.server.port(), source, kLong);
  EXPECT_EQ(client.add("counter", 1), 1);
  EXPECT_EQ(num_asked, 4);
}

TEST(Refusal, ASourceWithoutASecretEndsWithTheTimeout) {
  const LocalStore local;
  const SecretSource none = [] { return std::optional<Secret>(); };
  expect_parts(
      message_of<CommError>([&] { StoreClient::connect("127.0.0.1", local.server.port(), none, milliseconds(50)); }),
      {"no secret was found", "50 ms"});
}

TEST(Refusal, ProcessesOfOneHostMeetByThePublishedSecret) {
  const TemporaryFolder folder;
  Secret stale = Secret::mint();
  int port = 0;
  {
    port = StoreServer("127.0.0.1", 0, stale).port();
  }
  folder.write("store-" + std::to_string(port) + ".secret", stale.hex(), 0600);
  auto joining = std::async(std::launch::async, [&] {
    return StoreClient::connect(
               "127.0.0.1", port, [&] { return find_host_secret(port, folder.path()); }, kLong)
        .add("met", 1);
  });
  EXPECT_EQ(joining.wait_for(milliseconds(50)), std::future_status::timeout);
  const HostSecret published(port, folder.path());
  const StoreServer server("127.0.0.1", port, published.secret());
  EXPECT_EQ(joining.get(), 1);
}

TEST(Refusal, PlainTextGetsNothing) {
  const LocalStore local;
  StoreClient client = local.client();
  client.set("key", "value");
  for (const std::string& text :
       {encode(Request{1, Operation::kTryGet, 0, {"key"}}), encode(Request{1, Operation::kDeleteKey, 0, {"key"}}),
        std::string("GET / HTTP/1.0\r\n\r\n"), std::string(100'000, 'x')}) {
    const RawConnection connection(local.server.port());
    connection.send(text);
    bool ended = false;
    const std::string answer = connection.receive(milliseconds(5000), &ended);
    EXPECT_TRUE(ended);
    EXPECT_EQ(answer.find("value"), std::string::npos);
    EXPECT_LT(answer.size(), 16U) << "more than an alert";
  }
  EXPECT_EQ(client.get("key", kLong), "value");
}

TEST(Refusal, AConnectionThatSaysNothingIsDroppedAfterTheHandshakesTime) {
  ServerOptions options;
  options.handshake_timeout = milliseconds(200);
  const LocalStore local(options);
  const auto start = Clock::now();
  const RawConnection mute(local.server.port());
  const RawConnection slow(local.server.port());
  slow.send("\x16");
  EXPECT_TRUE(mute.ends_within(milliseconds(5000)));
  EXPECT_TRUE(slow.ends_within(milliseconds(5000)));
  EXPECT_GE(Clock::now() - start, milliseconds(190));
}

TEST(Refusal, TheOldestUnprovedConnectionMakesPlaceForTheNewest) {
  ServerOptions options;
  options.handshake_timeout = std::chrono::minutes(1);
  options.max_unauthenticated = 4;
  const LocalStore local(options);
  std::vector<std::unique_ptr<RawConnection>> crowd;
  for (int i = 0; i < 6; ++i) crowd.push_back(std::make_unique<RawConnection>(local.server.port()));
  EXPECT_TRUE(crowd[0]->ends_within(milliseconds(5000)));
  EXPECT_TRUE(crowd[1]->ends_within(milliseconds(5000)));
  EXPECT_FALSE(crowd[5]->ends_within(milliseconds(50)));
  StoreClient client = local.client();
  EXPECT_EQ(client.add("counter", 1), 1);
  EXPECT_TRUE(crowd[2]->ends_within(milliseconds(5000)));
}

TEST(Refusal, WhoHasTheSecretButBreaksTheRulesIsDropped) {
  const LocalStore local;
  StoreClient client = local.client();
  client.set("key", "value");
  std::string unknown = encode(Request{1, Operation::kPing, 0, {}});
  unknown[kLengthBytes + 8] = 99;
  const std::string too_long("\xff\xff\xff\xff", 4);
  for (const std::string& frame : {unknown, too_long, std::string(kLengthBytes, '\0')}) {
    const ChannelContext context(ChannelRole::kClient, local.secret);
    FrameStream stream(context);
    const RawConnection connection(local.server.port());
    authenticate(connection, stream);
    EXPECT_TRUE(eventually([&] { return local.server.num_clients() == 2; }));
    say(connection, stream, frame);
    EXPECT_TRUE(connection.ends_within(milliseconds(5000)));
    EXPECT_TRUE(eventually([&] { return local.server.num_clients() == 1; }));
  }
  EXPECT_EQ(client.get("key", kLong), "value");
}

TEST(Refusal, WhoDoesNotTakeItsAnswersIsDropped) {
  ServerOptions options;
  options.max_output_bytes = std::size_t{32} << 20;
  const LocalStore local(options);
  StoreClient client = local.client();
  client.set("large", std::string(std::size_t{10} << 20, 'x'));
  const ChannelContext context(ChannelRole::kClient, local.secret);
  FrameStream stream(context);
  const RawConnection glutton(local.server.port());
  authenticate(glutton, stream);
  std::string requests;
  for (std::uint64_t id = 1; id <= 20; ++id) requests += encode(Request{id, Operation::kGet, 0, {"large"}});
  say(glutton, stream, requests);
  EXPECT_TRUE(eventually([&] { return local.server.num_clients() == 1; }));
  EXPECT_EQ(client.add("counter", 1), 1);
}

}  // namespace
}  // namespace tessera::store
