#include "observe/event_file.h"

#include <tessera/flight/clock.h>

#include <array>
#include <bit>
#include <cstddef>
#include <limits>
#include <unistd.h>

#include "observe/output_file.h"

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

namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  constexpr std::uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kReversedPolynomial : 0);
    }
    table.at(byte) = remainder;
  }
  return table;
}

constexpr auto kTable = make_table();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t remainder = ~std::uint32_t{0};
  for (const char byte : bytes) {
    remainder = (remainder >> 8) ^ kTable[(remainder ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~remainder;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  constexpr std::uint32_t kMaskDelta = 0xa282ead8;
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + kMaskDelta;
}

}  // namespace tessera::observe

// The numbers of the fields are those of TensorBoard's event.proto, summary.proto and tensor.proto.

namespace tessera::observe {
namespace {

ProtobufWriter event_at(double seconds) {
  ProtobufWriter event;
  event.double_field(1, seconds);
  return event;
}

void append_number(std::string& bytes, std::uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

/// As TensorBoard expects it: it reads files whose names contain "tfevents", and finds the latest by the time in the
/// name.
std::filesystem::path file_name(std::int64_t now_ns) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return "events.out.tfevents." + std::to_string(now_ns / 1'000'000'000) + "." + host.data() + "." +
         std::to_string(getpid()) + "." + std::to_string(now_ns % 1'000'000'000);
}

std::vector<std::pair<std::string, double>> scalars_of(const StepSummary& summary) {
  constexpr double kMegabyte = 1e6;
  std::vector<std::pair<std::string, double>> scalars;
  const auto add = [&](const char* tag, std::optional<double> value) {
    if (value) scalars.emplace_back(tag, *value);
  };
  add("train/loss", summary.last.loss);
  add("train/learning_rate", summary.last.learning_rate);
  add("train/gradient_norm", summary.last.gradient_norm);
  add("speed/step_seconds", summary.step_seconds());
  add("speed/host_step_seconds", summary.host_step_seconds());
  if (summary.tokens > 0) add("speed/tokens_per_second", summary.tokens_per_second());
  add("memory/resident_megabytes", static_cast<double>(summary.memory.resident_bytes) / kMegabyte);
  add("memory/peak_megabytes", static_cast<double>(summary.memory.peak_bytes) / kMegabyte);
  if (const auto& device = summary.device_memory) {
    add("memory/device_megabytes", static_cast<double>(device->allocated_bytes) / kMegabyte);
    add("memory/device_peak_megabytes", static_cast<double>(device->peak_bytes) / kMegabyte);
  }
  scalars.insert(scalars.end(), summary.last.scalars.begin(), summary.last.scalars.end());
  return scalars;
}

/// Four spaces before each line make Markdown show it as it is.
std::string as_markdown_code(std::string_view text) {
  std::string code = "    ";
  for (const char c : text) {
    code += c;
    if (c == '\n') code += "    ";
  }
  return code;
}

class EventFile : public Sink {
 public:
  EventFile(const std::filesystem::path& folder, const RunDescription& run)
      : file_(folder / file_name(flight::now_ns()), OutputFile::Mode::kReplace) {
    const double now = flight::seconds_of(flight::now_ns());
    pending_ = tf_record(version_event(now));
    if (!run.config.empty()) pending_ += tf_record(text_event(now, "config", as_markdown_code(run.config)));
    flush();
  }

  void take(const StepSummary& summary) override {
    const double seconds = flight::seconds_of(summary.time_ns);
    pending_ += tf_record(scalars_event(seconds, summary.last.step, scalars_of(summary)));
  }
  void flush() final {
    file_.write(pending_);
    pending_.clear();
  }

 private:
  OutputFile file_;
  std::string pending_;
};

}  // namespace

std::string tf_record(std::string_view data) {
  std::string record;
  append_number(record, data.size(), 8);
  append_number(record, masked_crc32c(record), 4);
  record.append(data);
  append_number(record, masked_crc32c(data), 4);
  return record;
}

std::string version_event(double seconds) { return event_at(seconds).bytes_field(3, "brain.Event:2").bytes(); }

std::string scalars_event(double seconds, std::int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars) {
  ProtobufWriter summary;
  ProtobufWriter value;
  for (const auto& [tag, number] : scalars) {
    value.clear();
    value.bytes_field(1, tag).float_field(2, static_cast<float>(number));
    summary.message_field(1, value);
  }
  return event_at(seconds).int_field(2, step).message_field(5, summary).bytes();
}

std::string text_event(double seconds, const std::string& tag, std::string_view text) {
  constexpr int kStringType = 7;
  ProtobufWriter dimension;
  dimension.int_field(1, 1);
  ProtobufWriter shape;
  shape.message_field(2, dimension);
  ProtobufWriter tensor;
  tensor.int_field(1, kStringType).message_field(2, shape).bytes_field(8, text);
  ProtobufWriter plugin;
  plugin.bytes_field(1, "text");
  ProtobufWriter metadata;
  metadata.message_field(1, plugin);
  ProtobufWriter value;
  value.bytes_field(1, tag).message_field(8, tensor).message_field(9, metadata);
  ProtobufWriter summary;
  summary.message_field(1, value);
  return event_at(seconds).int_field(2, 0).message_field(5, summary).bytes();
}

std::unique_ptr<Sink> make_event_file(const std::filesystem::path& folder, const RunDescription& run) {
  return std::make_unique<EventFile>(folder, run);
}

}  // namespace tessera::observe
