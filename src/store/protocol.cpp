#include "store/protocol.h"

#include <tessera/core/error.h>

#include <concepts>

namespace tessera::store {
namespace {

template <std::unsigned_integral T>
void put(std::string& bytes, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

template <std::unsigned_integral T>
T take(std::string_view& bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i));
  }
  bytes.remove_prefix(sizeof(T));
  return value;
}

std::string encode_message(std::uint64_t id, std::uint8_t kind, std::int64_t number,
                           const std::vector<std::string>& fields) {
  const std::size_t size = frame_bytes(fields);
  if (size > kMaxFrameBytes || fields.size() > kMaxFields) {
    throw ConfigError("a message of " + std::to_string(size) + " bytes in " + std::to_string(fields.size()) +
                      " fields is too large for the store, which takes " + std::to_string(kMaxFrameBytes) +
                      " bytes in " + std::to_string(kMaxFields) + "; split it over several keys or calls");
  }
  std::string bytes;
  bytes.reserve(size);
  put(bytes, static_cast<std::uint32_t>(size - kLengthBytes));
  put(bytes, id);
  put(bytes, kind);
  put(bytes, static_cast<std::uint64_t>(number));
  put(bytes, static_cast<std::uint32_t>(fields.size()));
  for (const std::string& field : fields) {
    put(bytes, static_cast<std::uint32_t>(field.size()));
    bytes += field;
  }
  return bytes;
}

/// Decodes all of `bytes`, or returns nothing. Memory grows with the bytes that are there, not with what they announce.
std::optional<std::vector<std::string>> take_fields(std::string_view bytes, std::uint32_t count) {
  if (count > kMaxFields || count > bytes.size() / kLengthBytes) return std::nullopt;
  std::vector<std::string> fields;
  fields.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (bytes.size() < kLengthBytes) return std::nullopt;
    const auto length = take<std::uint32_t>(bytes);
    if (length > bytes.size()) return std::nullopt;
    fields.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  if (!bytes.empty()) return std::nullopt;
  return fields;
}

template <class Message, class Kind>
std::optional<Message> decode_message(std::string_view frame, Kind Message::* kind) {
  if (frame.size() < kHeaderBytes || frame.size() > kMaxFrameBytes - kLengthBytes) return std::nullopt;
  Message message;
  message.id = take<std::uint64_t>(frame);
  message.*kind = static_cast<Kind>(take<std::uint8_t>(frame));
  message.number = static_cast<std::int64_t>(take<std::uint64_t>(frame));
  const auto count = take<std::uint32_t>(frame);
  auto fields = take_fields(frame, count);
  if (!fields) return std::nullopt;
  message.fields = std::move(*fields);
  return message;
}

bool has_right_form(const Request& request) {
  const std::size_t count = request.fields.size();
  const bool no_number = request.number == 0;
  switch (request.operation) {
    case Operation::kPing:
    case Operation::kNumKeys:
      return no_number && count == 0;
    case Operation::kTryGet:
    case Operation::kDeleteKey:
    case Operation::kDeletePrefix:
    case Operation::kRelease:
      return no_number && count == 1;
    case Operation::kSet:
    case Operation::kAppend:
    case Operation::kLease:
      return no_number && count == 2;
    case Operation::kCompareSet:
      return no_number && count == 3;
    case Operation::kGet:
    case Operation::kWait:
    case Operation::kCheck:
      return no_number;
    case Operation::kMultiSet:
      return no_number && count % 2 == 0;
    case Operation::kAdd:
      return count == 1;
    case Operation::kCancel:
      return count == 0;
  }
  return false;
}

bool has_right_form(const Response& response) {
  switch (response.status) {
    case Status::kDone:
      return true;
    case Status::kRefused:
      return response.number == 0 && response.fields.size() == 1;
    case Status::kCancelled:
      return response.number == 0;
  }
  return false;
}

}  // namespace

std::size_t frame_bytes(const std::vector<std::string>& fields) {
  std::size_t size = kLengthBytes + kHeaderBytes;
  for (const std::string& field : fields) size += kLengthBytes + field.size();
  return size;
}

std::string encode(const Request& request) {
  return encode_message(request.id, static_cast<std::uint8_t>(request.operation), request.number, request.fields);
}

std::string encode(const Response& response) {
  return encode_message(response.id, static_cast<std::uint8_t>(response.status), response.number, response.fields);
}

std::optional<Request> decode_request(std::string_view frame) {
  auto request = decode_message(frame, &Request::operation);
  if (!request || !has_right_form(*request)) return std::nullopt;
  return request;
}

std::optional<Response> decode_response(std::string_view frame) {
  auto response = decode_message(frame, &Response::status);
  if (!response || !has_right_form(*response)) return std::nullopt;
  return response;
}

}  // namespace tessera::store
