#include "observe/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>

namespace tessera::observe {
namespace {

using namespace std::string_literals;

TEST(ProtobufWriter, WritesTheBytesOfTheFormatsDescription) {
  // The examples of the public description of the encoding: 150 and "testing".
  EXPECT_EQ(ProtobufWriter().unsigned_field(1, 150).bytes(), "\x08\x96\x01"s);
  EXPECT_EQ(ProtobufWriter().bytes_field(2, "testing").bytes(), "\x12\x07testing"s);
  EXPECT_EQ(ProtobufWriter().int_field(1, -2).bytes(), "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"s);
  EXPECT_EQ(ProtobufWriter().float_field(16, 1.0F).bytes(), "\x85\x01\x00\x00\x80\x3f"s);
  EXPECT_EQ(ProtobufWriter().double_field(1, 1.0).bytes(), "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f"s);
}

TEST(ProtobufReader, ReadsWhatTheWriterWrote) {
  ProtobufWriter inner;
  inner.int_field(3, std::numeric_limits<std::int64_t>::min());
  ProtobufWriter outer;
  outer.unsigned_field(1, std::numeric_limits<std::uint64_t>::max()).message_field(60, inner).double_field(7, -0.25);
  ProtobufReader reader(outer.bytes());
  const auto first = reader.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->number, 1);
  EXPECT_EQ(first->value, std::numeric_limits<std::uint64_t>::max());
  const auto second = reader.next();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->number, 60);
  EXPECT_EQ(second->bytes, inner.bytes());
  const auto third = reader.next();
  ASSERT_TRUE(third);
  EXPECT_EQ(std::bit_cast<double>(third->value), -0.25);
  EXPECT_EQ(std::string(first->raw) + std::string(second->raw) + std::string(third->raw), outer.bytes());
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.is_whole());
}

TEST(ProtobufReader, StopsAtWhatIsMalformed) {
  const std::string endless(11, '\xff');
  for (const std::string& bytes : {"\x08"s, "\x08\x96"s, "\x12\x07test"s, "\x09\x00"s, "\x0b"s, "\x00\x01"s, endless}) {
    ProtobufReader reader(bytes);
    EXPECT_FALSE(reader.next());
    EXPECT_FALSE(reader.is_whole());
    EXPECT_EQ(reader.num_rest_bytes(), bytes.size());
  }
}

TEST(ProtobufReader, DoesNotBelieveALengthThatIsTooLarge) {
  const std::string bytes = "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x"s;
  ProtobufReader reader(bytes);
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.is_whole());
}

}  // namespace
}  // namespace tessera::observe
