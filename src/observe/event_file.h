#pragma once

#include <tessera/observe/step_record.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::observe {

/// Appends fields of a protobuf message to a text. Traces and event files need a dozen messages: that is no reason for
/// a library and a code generator.
class ProtobufWriter {
 public:
  ProtobufWriter& unsigned_field(int number, std::uint64_t value);
  /// int32, int64 and enum fields.
  ProtobufWriter& int_field(int number, std::int64_t value);
  ProtobufWriter& double_field(int number, double value);
  ProtobufWriter& float_field(int number, float value);
  /// string, bytes, and messages that are written already.
  ProtobufWriter& bytes_field(int number, std::string_view value);
  ProtobufWriter& message_field(int number, const ProtobufWriter& message);

  const std::string& bytes() const { return bytes_; }
  /// Begins the next message, in the same memory.
  void clear() { bytes_.clear(); }

 private:
  void key(int number, int wire_type);
  void varint(std::uint64_t value);

  std::string bytes_;
};

/// A field as it lies in a message.
struct ProtobufField {
  int number = 0;
  int wire_type = 0;
  std::uint64_t value = 0;  ///< of a varint, or of 4 or 8 bytes
  std::string_view bytes;   ///< of wire type 2
  std::string_view raw;     ///< key and value
};

/// Reads the fields of a message one by one. The message may be malformed.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view message) : rest_(message) {}

  /// Nothing at the end, and where the message is malformed: then `is_whole()` is false.
  std::optional<ProtobufField> next();
  /// Whether everything was read.
  bool is_whole() const { return rest_.empty(); }
  std::size_t num_rest_bytes() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

/// The checksum with Castagnoli's polynomial, as RFC 3720 defines it.
std::uint32_t crc32c(std::string_view bytes);

/// As TFRecord files hold it, so that a checksum of bytes that contain checksums is not degenerate.
std::uint32_t masked_crc32c(std::string_view bytes);

/// A record of a TFRecord file: length, checksum of the length, data, checksum of the data.
std::string tf_record(std::string_view data);

/// TensorBoard's Event messages.
std::string version_event(double seconds);
std::string scalars_event(double seconds, std::int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars);
/// Shown as Markdown on the page "Text".
std::string text_event(double seconds, const std::string& tag, std::string_view text);

/// A new event file in `folder`, which is created when it is missing. Throws StorageError.
std::unique_ptr<Sink> make_event_file(const std::filesystem::path& folder, const RunDescription& run);

}  // namespace tessera::observe
