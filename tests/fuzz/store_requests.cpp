// Any bytes as what four clients who have proved the secret say: cut into frames, decoded and carried out. A frame that
// is none ends its client, as in the server.
#include <cstddef>
#include <cstdint>
#include <map>

#include "fuzz/expect.h"
#include "store/frame_stream.h"
#include "store/request_handler.h"

using namespace tessera::store;
using tessera::fuzz::expect;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr ConnectionId kNumClients = 4;
  FrameBuffer frames;
  std::map<ConnectionId, std::int64_t> num_open;
  RequestHandler handler([&](ConnectionId client, const Response& response) {
    expect(--num_open[client] >= 0, "a request is answered once");
    expect(decode_response(encode(response).substr(kLengthBytes)) == response, "an answer can be read");
  });
  frames.append({reinterpret_cast<const char*>(data), size});
  ConnectionId client = 0;
  while (const auto frame = frames.next()) {
    client = (client + 1) % kNumClients;
    auto request = decode_request(*frame);
    if (!request) {
      handler.disconnect(client);
      num_open[client] = 0;
      continue;
    }
    if (request->operation != Operation::kCancel) ++num_open[client];
    handler.handle(client, std::move(*request));
  }
  std::int64_t num_blocked = 0;
  for (const auto& [id, count] : num_open) num_blocked += count;
  expect(num_blocked == static_cast<std::int64_t>(handler.table().num_waits()), "what is not answered waits");
  for (ConnectionId id = 0; id < kNumClients; ++id) handler.disconnect(id);
  expect(handler.table().num_waits() == 0, "who has gone does not wait");
  expect(handler.table().num_awaited_keys() == 0, "no key keeps a list of who has gone");
  return 0;
}
