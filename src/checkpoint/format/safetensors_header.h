#pragma once

#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/core/error.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoints {

/// A text from a file, in quotes, fit for a message: not too long, and printable.
std::string shown(std::string_view text);

/// Note [A header is read as it comes]
/// A header or manifest may have 100 MB, and may come from an attacker. So no tree of JSON values is built from it: the
/// events of the parser drive a state machine, which knows what is allowed at each place and refuses the first thing
/// that is not. Nesting is bounded by the places that exist, memory by the size of the text.
///
/// This is the base of such machines: events that a machine does not override are refused.
class StrictReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  StrictReader(const StrictReader&) = delete;
  StrictReader& operator=(const StrictReader&) = delete;

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return unexpected(std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override { return unexpected(shown(text)); }
  bool binary(binary_t& /*value*/) override { return unexpected("bytes"); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    refuse(title_ + " is not valid JSON in UTF-8 at its byte " + std::to_string(position));
  }

 protected:
  // LibTorch's kernels stop at 64 dimensions.
  static constexpr std::size_t kMaxDims = 64;

  /// `origin` outlives this. `title` is "the header".
  StrictReader(const std::string& origin, std::string title) : origin_(origin), title_(std::move(title)) {}
  ~StrictReader() override = default;

  [[noreturn]] void refuse(const std::string& fault) const { throw StorageError(origin_ + ": " + fault); }
  bool unexpected(const std::string& found) const { refuse(where() + ": expected " + expected() + ", found " + found); }

  /// The place that has been reached, and what may stand there.
  virtual std::string where() const = 0;
  virtual std::string expected() const = 0;

 private:
  const std::string& origin_;
  const std::string title_;
};

/// A text as JSON writes it, in quotes. Throws ConfigError when it is not UTF-8; the message calls what should hold it
/// `holder`.
std::string json_text(const std::string& text, std::string_view holder);

/// Appends "[2,3]".
template <typename Number>
void append_json_list(std::string& text, const std::vector<Number>& numbers) {
  text += '[';
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(numbers[i]);
  }
  text += ']';
}

/// Whether a name from a file is that of a file in the same folder, and leads nowhere else.
inline bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

/// What the JSON of a header says, in its order.
struct HeaderText {
  std::vector<StoredTensor> tensors;
  SafetensorsLayout::Metadata metadata;
};

/// Reads the JSON of a header strictly: nothing unknown, nothing twice, whole numbers only. Does not look at where the
/// tensors lie. `origin` names the file. Throws StorageError.
HeaderText parse_header_text(std::string_view text, const std::string& origin);

/// The JSON for tensors in this order. Throws ConfigError for a name or note that is not UTF-8.
std::string make_header_text(const std::vector<StoredTensor>& tensors, const SafetensorsLayout::Metadata& metadata);

/// The bytes of a tensor; none when a product of its sizes, taking 0 as 1, does not fit into 63 bits: LibTorch counts
/// strides that way.
std::optional<std::uint64_t> bytes_of(StoredDtype dtype, const std::vector<std::int64_t>& shape);

/// "[2, 3]"
std::string shape_text(const std::vector<std::int64_t>& shape);

/// The key of the notes, which therefore cannot be a tensor's name.
inline constexpr std::string_view kMetadataKey = "__metadata__";

}  // namespace tessera::checkpoints
