#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "checkpoint/header_bytes.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::file_with;
using testing::repeated;

/// A header that must be refused, and what the message must say beside the file's name.
struct Refusal {
  const char* name;
  std::string file;
  std::vector<std::string> parts;
};

std::ostream& operator<<(std::ostream& stream, const Refusal& refusal) { return stream << refusal.name; }

/// One tensor "t" with these fields, and so many bytes.
std::string tensor(const std::string& fields, std::size_t num_bytes) {
  return file_with(R"({"t":{)" + fields + "}}", num_bytes);
}

/// Two tensors of four bytes at these offsets, and so many bytes.
std::string pair_at(const std::string& a, const std::string& b, std::size_t num_bytes) {
  return file_with(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + a +
                       R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + b + "}}",
                   num_bytes);
}

std::vector<Refusal> refusals_of_files() {
  return {
      {"Empty", "", {"at least 8 bytes", "0"}},
      {"ShorterThanItsLength", std::string(7, '\0'), {"at least 8 bytes", "7"}},
      {"HeaderAboveTheLimit", file_with("{}", 0, 100'000'001), {"100000001", "100000000"}},
      {"HeaderOfAllOnes", file_with("{}", 0, ~std::uint64_t{0}), {"18446744073709551615"}},
      {"HeaderBeyondTheFile", file_with("{}", 0, 3), {"3 bytes", "only 2"}},
      {"EmptyHeader", file_with("", 0), {"begin with {", "empty"}},
      {"HeaderThatStartsWithSpace", file_with(" {}", 0), {"begin with {", "\" \""}},
      {"ByteOrderMark", file_with("\xef\xbb\xbf{}", 0), {"begin with {"}},
      {"TabsAsPadding", file_with("{}\t", 0), {"end with }"}},
      {"NoJson", file_with("{\"a\" 1}", 0), {"JSON", "byte 6"}},
      {"TwoObjects", file_with("{} {}", 0), {"JSON"}},
      {"Comment", file_with("{/* x */}", 0), {"JSON"}},
      {"TrailingComma", file_with("{\"__metadata__\":{},}", 0), {"JSON"}},
      {"InvalidUtf8", file_with("{\"\xff\":{}}", 0), {"JSON in UTF-8"}},
      {"LoneSurrogate", file_with(R"({"__metadata__":{"a":"\ud800"}})", 0), {"JSON"}},
      {"CutShort", tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])", 3), {"4 bytes", "3", "cut short"}},
      {"SomethingAdded", tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])", 5), {"5", "added"}},
      {"DataWithoutTensors", file_with("{}", 1), {"0 bytes", "1"}},
  };
}

std::vector<Refusal> refusals_of_tensors() {
  return {
      {"NoDtype", tensor(R"("shape":[0],"data_offsets":[0,0])", 0), {"\"t\"", "no dtype"}},
      {"NoShape", tensor(R"("dtype":"U8","data_offsets":[0,0])", 0), {"\"t\"", "no shape"}},
      {"NoOffsets", tensor(R"("dtype":"U8","shape":[0])", 0), {"\"t\"", "no data_offsets"}},
      {"UnknownField", tensor(R"("dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1)", 0), {"\"t\"", "\"x\""}},
      {"FieldTwice", tensor(R"("dtype":"U8","dtype":"U8")", 0), {"\"t\"", "dtype", "twice"}},
      {"TensorTwice",
       file_with(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0074":{}})", 0),
       {"\"t\"", "twice"}},
      {"MetadataTwice", file_with(R"({"__metadata__":{},"__metadata__":{}})", 0), {"__metadata__", "twice"}},
      {"NoteTwice", file_with(R"({"__metadata__":{"a":"1","a":"2"}})", 0), {"\"a\"", "twice"}},
      {"NoteThatIsNoText", file_with(R"({"__metadata__":{"a":1}})", 0), {"__metadata__", "string", "found 1"}},
      {"MetadataThatIsAList", file_with(R"({"__metadata__":[]})", 0), {"__metadata__", "found a list"}},
      {"TensorThatIsAList", file_with(R"({"t":[]})", 0), {"\"t\"", "an object", "a list"}},
      {"UnknownDtype", tensor(R"("dtype":"F7","shape":[0],"data_offsets":[0,0])", 0), {"\"t\"", "\"F7\""}},
      {"DtypeThatIsNull", tensor(R"("dtype":null)", 0), {"\"t\"", "null"}},
      {"NegativeSize", tensor(R"("dtype":"U8","shape":[-1])", 0), {"\"t\"", "at least 0", "-1"}},
      {"FractionAsSize", tensor(R"("dtype":"U8","shape":[1.5])", 0), {"\"t\"", "1.5"}},
      {"FloatAsSize", tensor(R"("dtype":"U8","shape":[1.0])", 0), {"\"t\"", "1.0"}},
      {"NestedShape", tensor(R"("dtype":"U8","shape":[[1]])", 0), {"\"t\"", "a list"}},
      {"SizeAboveSixtyThreeBits", tensor(R"("dtype":"U8","shape":[9223372036854775808])", 0), {"\"t\"", "too large"}},
      {"TooManyDims",
       tensor(R"("dtype":"U8","shape":[1)" + repeated(",1", 64) + R"(],"data_offsets":[0,1])", 1),
       {"\"t\"", "more than 64"}},
      {"OverflowOfTheProduct",
       tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
       {"\"t\"", "[4294967296, 4294967296]"}},
      {"OverflowBesideAZero",
       tensor(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])", 0),
       {"\"t\"", "counted"}},
      {"OneOffset", tensor(R"("dtype":"U8","shape":[0],"data_offsets":[0])", 0), {"\"t\"", "two", "1 of them"}},
      {"ThreeOffsets", tensor(R"("dtype":"U8","shape":[0],"data_offsets":[0,0,0])", 0), {"\"t\"", "two", "third"}},
      {"OffsetsInReverse", tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1), {"\"t\"", "before"}},
      {"SizeThatDoesNotMatch",
       tensor(R"("dtype":"F32","shape":[2,3],"data_offsets":[0,20])", 20),
       {"\"t\"", "24 bytes", "F32 [2, 3]", "20"}},
      {"Hole", pair_at("[0,4]", "[5,9]", 9), {"\"b\"", "byte 4", "\"a\" ends", "byte 5", "no tensor"}},
      {"HoleAtTheStart", pair_at("[1,5]", "[5,9]", 9), {"\"a\"", "byte 0", "byte 1"}},
      {"Overlap", pair_at("[0,4]", "[3,7]", 7), {"\"b\"", "byte 3", "overlap"}},
      {"TheSameBytesTwice", pair_at("[0,4]", "[0,4]", 4), {"overlap"}},
      {"BeyondTheFile", pair_at("[0,4]", "[4,8]", 7), {"8 bytes", "7"}},
  };
}

class SafetensorsRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(SafetensorsRefusal, NamesTheFileAndTheFault) {
  const std::string message = testing::message_of<StorageError>([&] { testing::parse(GetParam().file); });
  testing::expect_parts(message, {"some.safetensors"});
  for (const std::string& part : GetParam().parts) testing::expect_parts(message, {part});
  EXPECT_LT(message.size(), 500U);
}

std::string name_of(const ::testing::TestParamInfo<Refusal>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Files, SafetensorsRefusal, ::testing::ValuesIn(refusals_of_files()), name_of);
INSTANTIATE_TEST_SUITE_P(Tensors, SafetensorsRefusal, ::testing::ValuesIn(refusals_of_tensors()), name_of);

TEST(SafetensorsHeader, EndsEarlyWhenAHeaderIsDeep) {
  const std::string deep = "{\"t\":{\"shape\":" + std::string(1'000'000, '[') + "}";
  testing::expect_parts(testing::message_of<StorageError>([&] { testing::parse(file_with(deep, 0)); }),
                        {"\"t\"", "found a list"});
}

TEST(SafetensorsHeader, ShortensLongNamesAndHidesControlCharacters) {
  const std::string header = "{\"\\u001b[2J" + std::string(10'000, 'x') + "\":[]}";
  const std::string message = testing::message_of<StorageError>([&] { testing::parse(file_with(header, 0)); });
  EXPECT_LT(message.size(), 500U);
  testing::expect_parts(message, {"\\x1b[2J", "..."});
}

}  // namespace
}  // namespace tessera
