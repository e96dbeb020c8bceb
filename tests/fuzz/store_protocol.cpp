// Any bytes as a request and as an answer: what decodes must encode to the same bytes.
#include <cstddef>
#include <cstdint>

#include "fuzz/expect.h"
#include "store/protocol.h"

using namespace tessera::store;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view frame(reinterpret_cast<const char*>(data), size);
  if (const auto request = decode_request(frame)) {
    tessera::fuzz::expect(encode(*request).substr(kLengthBytes) == frame, "a request has one form");
  }
  if (const auto response = decode_response(frame)) {
    tessera::fuzz::expect(encode(*response).substr(kLengthBytes) == frame, "an answer has one form");
  }
  return 0;
}
