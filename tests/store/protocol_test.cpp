#include "store/protocol.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <limits>

#include "support/error_message.h"

namespace tessera::store {
namespace {

std::string any_bytes() { return {"\0\xff key\n", 7}; }

std::vector<Request> one_of_each_request() {
  return {
      {0, Operation::kPing, 0, {}},
      {1, Operation::kSet, 0, {"key", any_bytes()}},
      {2, Operation::kGet, 0, {"a", "", any_bytes()}},
      {3, Operation::kTryGet, 0, {"key"}},
      {4, Operation::kAdd, std::numeric_limits<std::int64_t>::min(), {"counter"}},
      {5, Operation::kCompareSet, 0, {"key", "", "new"}},
      {6, Operation::kAppend, 0, {"key", "suffix"}},
      {7, Operation::kWait, 0, {"a", "b"}},
      {8, Operation::kCheck, 0, {}},
      {9, Operation::kDeleteKey, 0, {"key"}},
      {10, Operation::kNumKeys, 0, {}},
      {11, Operation::kMultiSet, 0, {"a", "1", "b", "2"}},
      {12, Operation::kDeletePrefix, 0, {""}},
      {13, Operation::kLease, 0, {"key", "gone"}},
      {14, Operation::kRelease, 0, {"key"}},
      {std::numeric_limits<std::uint64_t>::max(), Operation::kCancel, 7, {}},
  };
}

std::vector<Response> one_of_each_response() {
  return {
      {1, Status::kDone, -5, {"a", any_bytes()}}, {2, Status::kRefused, 0, {"why"}}, {3, Status::kCancelled, 0, {"k"}}};
}

std::string frame_of(const auto& message) { return encode(message).substr(kLengthBytes); }

TEST(Protocol, ReadsBackEveryMessage) {
  for (const Request& request : one_of_each_request()) EXPECT_EQ(decode_request(frame_of(request)), request);
  for (const Response& response : one_of_each_response()) EXPECT_EQ(decode_response(frame_of(response)), response);
}

TEST(Protocol, LooksAsSpecified) {
  const std::string expected(
      "\x21\0\0\0"          // length
      "\x07\0\0\0\0\0\0\0"  // id
      "\x05"                // add
      "\xfe\xff\xff\xff\xff\xff\xff\xff"
      "\x01\0\0\0"  // fields
      "\x08\0\0\0"
      "counters",
      4 + 33);
  EXPECT_EQ(encode(Request{7, Operation::kAdd, -2, {"counters"}}), expected);
}

TEST(Protocol, RefusesEveryMessageCutAnywhere) {
  for (const Request& request : one_of_each_request()) {
    const std::string frame = frame_of(request);
    for (std::size_t length = 0; length < frame.size(); ++length) {
      EXPECT_FALSE(decode_request(frame.substr(0, length))) << static_cast<int>(request.operation) << " " << length;
    }
  }
  for (const Response& response : one_of_each_response()) {
    const std::string frame = frame_of(response);
    for (std::size_t length = 0; length < frame.size(); ++length) {
      EXPECT_FALSE(decode_response(frame.substr(0, length))) << static_cast<int>(response.status) << " " << length;
    }
  }
}

TEST(Protocol, RefusesTrailingBytes) {
  for (const Request& request : one_of_each_request()) EXPECT_FALSE(decode_request(frame_of(request) + '\0'));
  for (const Response& response : one_of_each_response()) EXPECT_FALSE(decode_response(frame_of(response) + '\0'));
}

TEST(Protocol, RefusesOperationsAndStatusesThatDoNotExist) {
  for (const int number : {0, 17, 255}) {
    EXPECT_FALSE(decode_request(frame_of(Request{1, static_cast<Operation>(number), 0, {}}))) << number;
  }
  for (const int number : {0, 4, 255}) {
    EXPECT_FALSE(decode_response(frame_of(Response{1, static_cast<Status>(number), 0, {}}))) << number;
  }
}

TEST(Protocol, RefusesAWrongNumberOfFields) {
  for (Request request : one_of_each_request()) {
    const bool takes_any = request.operation == Operation::kGet || request.operation == Operation::kWait ||
                           request.operation == Operation::kCheck;
    request.fields.emplace_back("one more");
    EXPECT_EQ(decode_request(frame_of(request)).has_value(), takes_any) << static_cast<int>(request.operation);
  }
  EXPECT_FALSE(decode_response(frame_of(Response{1, Status::kRefused, 0, {}})));
}

TEST(Protocol, RefusesANumberWhereNoneBelongs) {
  for (Request request : one_of_each_request()) {
    if (request.operation == Operation::kAdd || request.operation == Operation::kCancel) continue;
    request.number = 1;
    EXPECT_FALSE(decode_request(frame_of(request))) << static_cast<int>(request.operation);
  }
}

TEST(Protocol, RefusesCountsAndLengthsBeyondTheFrameWithoutReservingThem) {
  const Request request{1, Operation::kWait, 0, {"abc"}};
  std::string many_fields = frame_of(request);
  many_fields.replace(17, 4, "\xff\xff\xff\xff");
  EXPECT_FALSE(decode_request(many_fields));
  std::string long_field = frame_of(request);
  long_field.replace(21, 4, "\xff\xff\xff\xff");
  EXPECT_FALSE(decode_request(long_field));
}

TEST(Protocol, DoesNotMakeMessagesThatWouldBeRefused) {
  const std::string message = testing::message_of<ConfigError>(
      [] { encode(Request{1, Operation::kSet, 0, {"key", std::string(kMaxFrameBytes, 'x')}}); });
  testing::expect_parts(message, {"67108864", "split it"});
  EXPECT_THROW(encode(Request{1, Operation::kWait, 0, std::vector<std::string>(kMaxFields + 1)}), ConfigError);
  const Request most{1, Operation::kWait, 0, std::vector<std::string>(kMaxFields)};
  EXPECT_EQ(decode_request(frame_of(most)), most);
}

}  // namespace
}  // namespace tessera::store
