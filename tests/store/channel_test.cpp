#include "store/channel.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include "store/foreign_tls_server.h"
#include "store/frame_stream.h"

namespace tessera::store {
namespace {

/// Takes what one has to say and gives it to the other; what was said.
std::string carry(Channel& from, Channel& to, std::string& plain) {
  const std::string bytes(from.output());
  from.sent(bytes.size());
  to.receive(bytes, plain);
  return bytes;
}

struct Pair {
  explicit Pair(const Secret& of_client = Secret::mint(), const std::optional<Secret>& of_server = std::nullopt)
      : client_context(ChannelRole::kClient, of_client),
        server_context(ChannelRole::kServer, of_server.value_or(of_client)),
        client(client_context),
        server(server_context) {}

  void shake_hands() {
    for (int i = 0; i < 4; ++i) {
      carry(client, server, at_server);
      carry(server, client, at_client);
    }
  }

  ChannelContext client_context;
  ChannelContext server_context;
  Channel client;
  Channel server;
  std::string at_client;
  std::string at_server;
};

TEST(Channel, OpensWithTheSameSecretAndCarriesBothWays) {
  Pair pair;
  pair.shake_hands();
  ASSERT_EQ(pair.client.state(), Channel::State::kOpen) << pair.client.failure();
  ASSERT_EQ(pair.server.state(), Channel::State::kOpen) << pair.server.failure();
  pair.client.send("question");
  const std::string wire = carry(pair.client, pair.server, pair.at_server);
  EXPECT_EQ(wire.find("question"), std::string::npos);
  pair.server.send("answer");
  carry(pair.server, pair.client, pair.at_client);
  EXPECT_EQ(pair.at_server, "question");
  EXPECT_EQ(pair.at_client, "answer");
}

TEST(Channel, TellsNothingThatOneCouldResume) {
  Pair pair;
  pair.shake_hands();
  // A server that issued tickets would have something to say right after the handshake.
  EXPECT_TRUE(pair.server.output().empty());
}

TEST(Channel, CarriesMoreThanARecordInAnyPieces) {
  Pair pair;
  pair.shake_hands();
  std::string large;
  for (int i = 0; i < 300'000; ++i) large += static_cast<char>(i * 7 % 251);
  pair.client.send(large);
  const std::string wire(pair.client.output());
  for (std::size_t at = 0; at < wire.size(); at += 1000) pair.server.receive(wire.substr(at, 1000), pair.at_server);
  EXPECT_TRUE(pair.at_server == large);
}

TEST(Channel, OpensByteByByte) {
  Pair pair;
  for (int i = 0; i < 4; ++i) {
    for (auto [from, to] : {std::pair(&pair.client, &pair.server), std::pair(&pair.server, &pair.client)}) {
      const std::string bytes(from->output());
      from->sent(bytes.size());
      for (const char byte : bytes) to->receive({&byte, 1}, pair.at_server);
    }
  }
  EXPECT_EQ(pair.client.state(), Channel::State::kOpen);
  EXPECT_EQ(pair.server.state(), Channel::State::kOpen);
}

TEST(Channel, RefusesAnotherSecretOnBothSides) {
  Pair pair(Secret::mint(), Secret::mint());
  pair.shake_hands();
  EXPECT_EQ(pair.client.state(), Channel::State::kFailed);
  EXPECT_EQ(pair.server.state(), Channel::State::kFailed);
  EXPECT_FALSE(pair.server.failure().empty());
}

TEST(Channel, RefusesAServerThatShowsACertificateInstead) {
  const ChannelContext context(ChannelRole::kClient, Secret::mint());
  Channel client(context);
  testing::ForeignTlsServer server;
  std::string plain;
  for (int i = 0; i < 4 && client.state() == Channel::State::kHandshake; ++i) {
    const std::string bytes(client.output());
    client.sent(bytes.size());
    const std::string answer = server.answer(bytes);
    ASSERT_GT(answer.size(), 500U) << "the server did not show its certificate";
    client.receive(answer, plain);
  }
  EXPECT_EQ(client.state(), Channel::State::kFailed);
}

TEST(Channel, RefusesAFlippedBitAnywhereInTheFirstMessage) {
  const Secret secret = Secret::mint();
  const std::size_t length = Pair(secret).client.output().size();
  // The record's own version means nothing in TLS 1.3, and is the one byte that nobody vouches for.
  constexpr std::size_t kIgnored = 2;
  for (std::size_t at = 0; at < length; ++at) {
    if (at == kIgnored) continue;
    Pair pair(secret);
    std::string bytes(pair.client.output());
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    pair.client.sent(bytes.size());
    pair.server.receive(bytes, pair.at_server);
    pair.shake_hands();
    EXPECT_NE(pair.server.state(), Channel::State::kOpen) << at;
    EXPECT_NE(pair.client.state(), Channel::State::kOpen) << at;
  }
}

TEST(Channel, RefusesAFlippedBitInWhatItCarries) {
  const Secret secret = Secret::mint();
  for (std::size_t at = 0; at < 30; ++at) {
    Pair pair(secret);
    pair.shake_hands();
    pair.client.send("question");
    std::string bytes(pair.client.output());
    ASSERT_GE(bytes.size(), 30U);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    pair.server.receive(bytes, pair.at_server);
    EXPECT_TRUE(pair.at_server.empty()) << at;
    EXPECT_NE(pair.server.state(), Channel::State::kClosed) << at;
  }
}

TEST(Channel, GivesNothingOfARecordThatIsCut) {
  Pair pair;
  pair.shake_hands();
  pair.client.send("question");
  const std::string bytes(pair.client.output());
  for (std::size_t i = 0; i + 1 < bytes.size(); ++i) pair.server.receive(bytes.substr(i, 1), pair.at_server);
  EXPECT_TRUE(pair.at_server.empty());
  EXPECT_EQ(pair.server.state(), Channel::State::kOpen);
  pair.server.receive(bytes.substr(bytes.size() - 1), pair.at_server);
  EXPECT_EQ(pair.at_server, "question");
}

TEST(Channel, RefusesARecordThatComesTwice) {
  Pair pair;
  pair.shake_hands();
  pair.client.send("add");
  const std::string bytes = carry(pair.client, pair.server, pair.at_server);
  pair.server.receive(bytes, pair.at_server);
  EXPECT_EQ(pair.at_server, "add");
  EXPECT_EQ(pair.server.state(), Channel::State::kFailed);
}

TEST(Channel, RefusesARecordedConversation) {
  const Secret secret = Secret::mint();
  Pair pair(secret);
  std::vector<std::string> recorded;
  for (int i = 0; i < 3; ++i) {
    recorded.push_back(carry(pair.client, pair.server, pair.at_server));
    carry(pair.server, pair.client, pair.at_client);
  }
  pair.client.send("delete everything");
  recorded.push_back(carry(pair.client, pair.server, pair.at_server));
  ASSERT_EQ(pair.at_server, "delete everything");

  Channel again(pair.server_context);
  std::string plain;
  for (const auto& bytes : recorded) {
    again.receive(bytes, plain);
    EXPECT_NE(again.state(), Channel::State::kOpen);
  }
  EXPECT_TRUE(plain.empty());
  EXPECT_EQ(again.state(), Channel::State::kFailed);
}

/// Records of one handshake message that takes its time: each is as it should be, and the last never comes.
std::string endless_handshake(std::size_t num_records) {
  constexpr std::size_t kBodyBytes = 1000;
  const std::string record_header("\x16\x03\x01\x03\xe8", 5);
  const std::string message_header("\x01\x01\x00\x00", 4);
  std::string bytes = record_header + message_header + std::string(kBodyBytes - message_header.size(), '\0');
  for (std::size_t i = 1; i < num_records; ++i) bytes += record_header + std::string(kBodyBytes, '\0');
  return bytes;
}

TEST(FrameStream, EndsAHandshakeThatIsTooLong) {
  const ChannelContext context(ChannelRole::kServer, Secret::mint());
  FrameStream stream(context);
  const std::string bytes = endless_handshake(20);
  std::size_t at = 0;
  for (; at < bytes.size() && !stream.ended(); at += 100) stream.receive(bytes.substr(at, 100));
  EXPECT_GE(at, FrameStream::kMaxHandshakeBytes) << stream.reason();
  EXPECT_LT(at, FrameStream::kMaxHandshakeBytes + 200);
  EXPECT_NE(stream.reason().find("longer"), std::string::npos) << stream.reason();
}

TEST(FrameStream, EndsItAlsoWhenAllOfItComesAtOnce) {
  const ChannelContext context(ChannelRole::kServer, Secret::mint());
  FrameStream stream(context);
  stream.receive(endless_handshake(60));
  EXPECT_TRUE(stream.ended());
  EXPECT_FALSE(stream.authenticated());
  EXPECT_FALSE(stream.next_frame());
}

}  // namespace
}  // namespace tessera::store
