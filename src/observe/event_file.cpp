#include "observe/event_file.h"

#include <tessera/flight/clock.h>

#include <unistd.h>

#include <array>

#include "observe/crc32c.h"
#include "observe/output_file.h"
#include "observe/protobuf.h"

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

/// As TensorBoard expects it: it reads files whose names hold "tfevents", and takes the latest by the time in it.
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
  if (summary.tokens > 0) add("speed/tokens_per_second", summary.tokens_per_second());
  add("memory/resident_megabytes", static_cast<double>(summary.memory.resident_bytes) / kMegabyte);
  add("memory/peak_megabytes", static_cast<double>(summary.memory.peak_bytes) / kMegabyte);
  scalars.insert(scalars.end(), summary.last.scalars.begin(), summary.last.scalars.end());
  return scalars;
}

/// Four spaces before each line keep Markdown from reading anything into it.
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
