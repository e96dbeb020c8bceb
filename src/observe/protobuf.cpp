#include "observe/protobuf.h"

#include <bit>
#include <cstddef>
#include <limits>

namespace tessera::observe {
namespace {

constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kLengthDelimited = 2;
constexpr int kFixed32 = 5;

void append_little_endian(std::string& bytes, std::uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

std::optional<std::uint64_t> take_varint(std::string_view& rest) {
  constexpr std::size_t kMaxBytes = 10;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < rest.size() && i < kMaxBytes; ++i) {
    const auto byte = static_cast<unsigned char>(rest[i]);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) {
      rest.remove_prefix(i + 1);
      return value;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> take_little_endian(std::string_view& rest, std::size_t num_bytes) {
  if (rest.size() < num_bytes) return std::nullopt;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < num_bytes; ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(rest[i])) << (8 * i);
  }
  rest.remove_prefix(num_bytes);
  return value;
}

/// Fills in the value; false when it is not all there.
bool take_value(std::string_view& rest, ProtobufField& field) {
  std::optional<std::uint64_t> number;
  switch (field.wire_type) {
    case kVarint:
    case kLengthDelimited:
      number = take_varint(rest);
      break;
    case kFixed64:
      number = take_little_endian(rest, 8);
      break;
    case kFixed32:
      number = take_little_endian(rest, 4);
      break;
    default:
      return false;
  }
  if (!number) return false;
  field.value = *number;
  if (field.wire_type != kLengthDelimited) return true;
  if (*number > rest.size()) return false;
  field.bytes = rest.substr(0, *number);
  rest.remove_prefix(*number);
  return true;
}

}  // namespace

ProtobufWriter& ProtobufWriter::unsigned_field(int number, std::uint64_t value) {
  key(number, kVarint);
  varint(value);
  return *this;
}

ProtobufWriter& ProtobufWriter::int_field(int number, std::int64_t value) {
  return unsigned_field(number, static_cast<std::uint64_t>(value));
}

ProtobufWriter& ProtobufWriter::double_field(int number, double value) {
  key(number, kFixed64);
  append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value), 8);
  return *this;
}

ProtobufWriter& ProtobufWriter::float_field(int number, float value) {
  key(number, kFixed32);
  append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value), 4);
  return *this;
}

ProtobufWriter& ProtobufWriter::bytes_field(int number, std::string_view value) {
  key(number, kLengthDelimited);
  varint(value.size());
  bytes_.append(value);
  return *this;
}

ProtobufWriter& ProtobufWriter::message_field(int number, const ProtobufWriter& message) {
  return bytes_field(number, message.bytes());
}

void ProtobufWriter::key(int number, int wire_type) {
  varint((static_cast<std::uint64_t>(number) << 3) | static_cast<std::uint64_t>(wire_type));
}

void ProtobufWriter::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>((value & 0x7f) | 0x80));
  bytes_.push_back(static_cast<char>(value));
}

std::optional<ProtobufField> ProtobufReader::next() {
  std::string_view rest = rest_;
  const auto key = take_varint(rest);
  if (!key || (*key >> 3) == 0 || (*key >> 3) > std::numeric_limits<std::uint32_t>::max() >> 3) return std::nullopt;
  ProtobufField field;
  field.number = static_cast<int>(*key >> 3);
  field.wire_type = static_cast<int>(*key & 7);
  if (!take_value(rest, field)) return std::nullopt;
  field.raw = rest_.substr(0, rest_.size() - rest.size());
  rest_ = rest;
  return field;
}

}  // namespace tessera::observe
