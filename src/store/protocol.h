#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The messages between client and server, inside an encrypted channel: docs/formats/store_protocol.md.
namespace tessera::store {

enum class Operation : std::uint8_t {
  kPing = 1,
  kSet = 2,
  kGet = 3,
  kTryGet = 4,
  kAdd = 5,
  kCompareSet = 6,
  kAppend = 7,
  kWait = 8,
  kCheck = 9,
  kDeleteKey = 10,
  kNumKeys = 11,
  kMultiSet = 12,
  kDeletePrefix = 13,
  kLease = 14,
  kRelease = 15,
  kCancel = 16,
};

enum class Status : std::uint8_t {
  kDone = 1,
  kRefused = 2,    ///< the request cannot be met; the one field says why
  kCancelled = 3,  ///< the answer to a cancelled request; the fields are the keys that are missing
};

/// By default a ping.
struct Request {
  std::uint64_t id = 0;
  Operation operation = Operation::kPing;
  std::int64_t number = 0;
  std::vector<std::string> fields;

  bool operator==(const Request&) const = default;
};

struct Response {
  std::uint64_t id = 0;
  Status status = Status::kDone;
  std::int64_t number = 0;
  std::vector<std::string> fields;

  bool operator==(const Response&) const = default;
};

inline constexpr std::size_t kLengthBytes = 4;              ///< in front of a frame and of a field
inline constexpr std::size_t kHeaderBytes = 8 + 1 + 8 + 4;  ///< id, operation or status, number, number of fields
/// A frame with its length in front. Also the most that a value with its key may take.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{64} << 20;
/// So that a frame of empty fields cannot take many times its size in memory.
inline constexpr std::size_t kMaxFields = std::size_t{1} << 18;

/// The bytes that a message takes as a frame. One above kMaxFrameBytes or kMaxFields would be refused.
std::size_t frame_bytes(const std::vector<std::string>& fields);

/// The whole frame, its length included. Throws ConfigError for one that is too large.
std::string encode(const Request& request);
std::string encode(const Response& response);

/// Decodes a frame without its length. Returns nothing for a frame that does not follow the format exactly: every byte
/// has one meaning, and encoding the result gives the same bytes.
std::optional<Request> decode_request(std::string_view frame);
std::optional<Response> decode_response(std::string_view frame);

}  // namespace tessera::store
