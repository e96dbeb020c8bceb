// The whole state of a server's connection behind a real handshake. The first byte chooses what the input is: what a
// client says once it has proved the secret, or changes that somebody on the way makes to its bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fuzz/expect.h"
#include "store/frame_stream.h"
#include "store/request_handler.h"

using namespace tessera::store;
using tessera::fuzz::expect;

namespace {

const Secret& secret() {
  static const Secret kSecret = Secret::from_hex(std::string(64, '5'));
  return kSecret;
}

std::string take_output(FrameStream& stream) {
  std::string bytes;
  while (!stream.output().empty()) {
    bytes += stream.output();
    stream.sent(stream.output().size());
  }
  return bytes;
}

/// Where the record's own version lies, which means nothing in TLS 1.3.
bool means_nothing(std::size_t at) { return at == 1 || at == 2; }

/// Changes bytes by pairs of position and difference; returns whether any was.
bool change(std::string& bytes, std::string_view edits) {
  const std::string before = bytes;
  for (std::size_t i = 0; i + 2 < edits.size(); i += 3) {
    const std::size_t at =
        (static_cast<unsigned char>(edits[i]) * 256U + static_cast<unsigned char>(edits[i + 1])) % bytes.size();
    if (!means_nothing(at)) bytes[at] = static_cast<char>(bytes[at] ^ edits[i + 2]);
  }
  return bytes != before;
}

struct Session {
  Session() : client(client_context()), server(server_context()) {}

  static const ChannelContext& client_context() {
    static const ChannelContext kContext(ChannelRole::kClient, secret());
    return kContext;
  }
  static const ChannelContext& server_context() {
    static const ChannelContext kContext(ChannelRole::kServer, secret());
    return kContext;
  }

  void shake_hands() {
    for (int i = 0; i < 3; ++i) {
      server.receive(take_output(client));
      client.receive(take_output(server));
    }
    expect(client.authenticated() && server.authenticated(), "both have the secret");
  }

  FrameStream client;
  FrameStream server;
};

void say_anything(std::string_view input) {
  Session session;
  session.shake_hands();
  RequestHandler handler([&](ConnectionId, const Response& response) { session.server.queue(encode(response)); });
  session.client.queue(std::string(input));
  session.server.receive(take_output(session.client));
  while (const auto frame = session.server.next_frame()) {
    auto request = decode_request(*frame);
    if (!request) break;
    handler.handle(1, std::move(*request));
  }
  session.client.receive(take_output(session.server));
  while (const auto frame = session.client.next_frame())
    expect(decode_response(*frame).has_value(), "answers are such");
}

void change_the_first_message(std::string_view edits) {
  Session session;
  std::string bytes = take_output(session.client);
  const bool changed = change(bytes, edits);
  session.server.receive(bytes);
  for (int i = 0; i < 3; ++i) {
    session.client.receive(take_output(session.server));
    session.server.receive(take_output(session.client));
  }
  expect(session.server.authenticated() == !changed, "a changed handshake proves nothing");
}

void change_a_message(std::string_view edits) {
  Session session;
  session.shake_hands();
  session.client.queue(encode(Request{1, Operation::kSet, 0, {"key", "value"}}));
  std::string bytes = take_output(session.client);
  const bool changed = change(bytes, edits);
  session.server.receive(bytes);
  expect(session.server.next_frame().has_value() == !changed, "a changed message is not read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const std::string_view rest = input.substr(1);
  switch (input[0] % 3) {
    case 0:
      say_anything(rest);
      break;
    case 1:
      change_the_first_message(rest);
      break;
    default:
      change_a_message(rest);
      break;
  }
  return 0;
}
