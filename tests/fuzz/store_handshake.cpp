// Any bytes from somebody who has not proved the secret: the server never takes the proof for given.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fuzz/expect.h"
#include "store/frame_stream.h"

using namespace tessera::store;
using tessera::fuzz::expect;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ChannelContext kContext(ChannelRole::kServer, Secret::from_hex(std::string(64, '5')));
  FrameStream stream(kContext);
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // The first byte says in which pieces the others arrive.
  std::size_t piece = 1;
  if (!bytes.empty()) {
    piece += static_cast<unsigned char>(bytes[0]) * 8U;
    bytes.remove_prefix(1);
  }
  while (!bytes.empty() && !stream.ended()) {
    const std::size_t count = std::min(piece, bytes.size());
    stream.receive(bytes.substr(0, count));
    bytes.remove_prefix(count);
    stream.sent(stream.output().size());
  }
  expect(!stream.authenticated(), "nobody is let in without the secret");
  expect(!stream.next_frame(), "nothing is read without the secret");
  return 0;
}
