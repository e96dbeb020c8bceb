#include "checkpoint/format/safetensors_header.h"

#include <tessera/core/error.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <utility>

namespace tessera::checkpoints {

std::string json_text(const std::string& text, std::string_view holder) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw ConfigError(std::string(holder) + " holds UTF-8 text only, found " + shown(text));
  }
}

namespace {

constexpr std::string_view kHolder = "a safetensors file";

}  // namespace

std::string make_header_text(const std::vector<StoredTensor>& tensors, const SafetensorsLayout::Metadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"" + std::string(kMetadataKey) + "\":{";
    for (const auto& [key, value] : metadata) {
      if (text.back() != '{') text += ',';
      text += json_text(key, kHolder) + ":" + json_text(value, kHolder);
    }
    text += '}';
  }
  for (const StoredTensor& tensor : tensors) {
    if (text.size() > 1) text += ',';
    text +=
        json_text(tensor.name, kHolder) + R"(:{"dtype":")" + std::string(dtype_name(tensor.dtype)) + R"(","shape":)";
    append_json_list(text, tensor.shape);
    text += R"(,"data_offsets":)";
    append_json_list(text, std::vector<std::uint64_t>{tensor.begin, tensor.end});
    text += '}';
  }
  return text + "}";
}

std::optional<std::uint64_t> bytes_of(StoredDtype dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t product = dtype_bytes(dtype);
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) empty = true;
    const std::int64_t factor = size == 0 ? 1 : size;
    if (product > std::numeric_limits<std::int64_t>::max() / factor) return std::nullopt;
    product *= factor;
  }
  return empty ? 0 : static_cast<std::uint64_t>(product);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kMost = 16;
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size() && i < kMost; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (shape.size() > kMost ? ", ...]" : "]");
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 120;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\') {
      result += c;
    } else {
      result += "\\x";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    }
  }
  return result + (text.size() > kMost ? "...\"" : "\"");
}

namespace {

/// See Note [A header is read as it comes].
class HeaderReader : public StrictReader {
 public:
  explicit HeaderReader(const std::string& origin) : StrictReader(origin, "the header") {}

  HeaderText take() { return std::move(header_); }

  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(std::size_t /*num_elements*/) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t /*num_elements*/) override;
  bool end_array() override;

 private:
  enum class Place {
    kStart,
    kNames,
    kTensor,
    kFields,
    kDtype,
    kShape,
    kSizes,
    kOffsets,
    kBounds,
    kMetadata,
    kNotes,
    kNote,
    kEnd
  };

  std::string where() const override;
  std::string expected() const override;
  void begin_field(const std::string& name);
  void once(bool& seen, const char* what) const;
  void finish_tensor();

  Place place_ = Place::kStart;
  HeaderText header_;
  std::unordered_set<std::string> names_;
  std::string note_;
  std::vector<std::uint64_t> bounds_;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

std::string HeaderReader::where() const {
  switch (place_) {
    case Place::kStart:
    case Place::kNames:
    case Place::kEnd:
      return "the header";
    case Place::kMetadata:
    case Place::kNotes:
    case Place::kNote:
      return std::string(kMetadataKey);
    default:
      return "tensor " + shown(header_.tensors.back().name);
  }
}

std::string HeaderReader::expected() const {
  switch (place_) {
    case Place::kStart:
      return "an object of tensors";
    case Place::kTensor:
      return "an object with dtype, shape and data_offsets";
    case Place::kDtype:
      return "the name of a type as dtype";
    case Place::kShape:
      return "a list as shape";
    case Place::kSizes:
      return "whole numbers of at least 0 as sizes in shape";
    case Place::kOffsets:
    case Place::kBounds:
      return "two whole numbers of at least 0 as data_offsets";
    case Place::kMetadata:
      return "an object of strings";
    case Place::kNote:
      return "a string as value of " + shown(note_);
    default:
      return "nothing more";
  }
}

bool HeaderReader::start_object(std::size_t /*num_elements*/) {
  switch (place_) {
    case Place::kStart:
      place_ = Place::kNames;
      return true;
    case Place::kTensor:
      place_ = Place::kFields;
      return true;
    case Place::kMetadata:
      place_ = Place::kNotes;
      return true;
    default:
      return unexpected("an object");
  }
}

bool HeaderReader::key(string_t& name) {
  if (place_ == Place::kFields) {
    begin_field(name);
  } else if (place_ == Place::kNotes) {
    if (header_.metadata.contains(name)) refuse("the key " + shown(name) + " stands twice in " + where());
    note_ = name;
    place_ = Place::kNote;
  } else if (name == kMetadataKey) {
    once(has_metadata_, "__metadata__");
    place_ = Place::kMetadata;
  } else {
    if (!names_.insert(name).second) refuse("tensor " + shown(name) + " stands twice in the header");
    header_.tensors.push_back({std::move(name), StoredDtype::kF32, {}, 0, 0});
    has_dtype_ = has_shape_ = has_offsets_ = false;
    bounds_.clear();
    place_ = Place::kTensor;
  }
  return true;
}

void HeaderReader::once(bool& seen, const char* what) const {
  if (seen) refuse(where() + ": " + what + " stands there twice");
  seen = true;
}

void HeaderReader::begin_field(const std::string& name) {
  if (name == "dtype") {
    once(has_dtype_, "dtype");
    place_ = Place::kDtype;
  } else if (name == "shape") {
    once(has_shape_, "shape");
    place_ = Place::kShape;
  } else if (name == "data_offsets") {
    once(has_offsets_, "data_offsets");
    place_ = Place::kOffsets;
  } else {
    refuse(where() + ": expected dtype, shape and data_offsets, found the key " + shown(name));
  }
}

bool HeaderReader::string(string_t& value) {
  if (place_ == Place::kNote) {
    header_.metadata.emplace(std::move(note_), std::move(value));
    place_ = Place::kNotes;
    return true;
  }
  if (place_ != Place::kDtype) return unexpected("the text " + shown(value));
  const auto dtype = dtype_of_name(value);
  if (!dtype) {
    refuse(where() + ": the type " + shown(value) +
           " is unknown here; docs/formats/safetensors.md lists those that are");
  }
  header_.tensors.back().dtype = *dtype;
  place_ = Place::kFields;
  return true;
}

bool HeaderReader::start_array(std::size_t /*num_elements*/) {
  if (place_ == Place::kShape) {
    place_ = Place::kSizes;
  } else if (place_ == Place::kOffsets) {
    place_ = Place::kBounds;
  } else {
    return unexpected("a list");
  }
  return true;
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (place_ == Place::kSizes) {
    std::vector<std::int64_t>& shape = header_.tensors.back().shape;
    if (!std::in_range<std::int64_t>(value)) return unexpected(std::to_string(value) + ", which is too large");
    if (shape.size() == kMaxDims) return unexpected("more than " + std::to_string(kMaxDims) + " of them");
    shape.push_back(static_cast<std::int64_t>(value));
  } else if (place_ == Place::kBounds) {
    if (bounds_.size() == 2) return unexpected("a third");
    bounds_.push_back(value);
  } else {
    return unexpected(std::to_string(value));
  }
  return true;
}

bool HeaderReader::end_array() {
  if (place_ == Place::kBounds && bounds_.size() != 2) {
    return unexpected(std::to_string(bounds_.size()) + " of them");
  }
  place_ = Place::kFields;
  return true;
}

bool HeaderReader::end_object() {
  if (place_ == Place::kFields) {
    finish_tensor();
    place_ = Place::kNames;
  } else if (place_ == Place::kNotes) {
    place_ = Place::kNames;
  } else {
    place_ = Place::kEnd;
  }
  return true;
}

void HeaderReader::finish_tensor() {
  if (!has_dtype_) refuse(where() + ": it has no dtype");
  if (!has_shape_) refuse(where() + ": it has no shape");
  if (!has_offsets_) refuse(where() + ": it has no data_offsets");
  StoredTensor& tensor = header_.tensors.back();
  tensor.begin = bounds_[0];
  tensor.end = bounds_[1];
  const auto num_bytes = bytes_of(tensor.dtype, tensor.shape);
  if (!num_bytes)
    refuse(where() + ": the shape " + shape_text(tensor.shape) + " has more elements than can be counted");
  const std::string offsets = "data_offsets [" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) + "]";
  if (tensor.begin > tensor.end) refuse(where() + ": its " + offsets + " end before they begin");
  if (tensor.num_bytes() != *num_bytes) {
    refuse(where() + ": expected " + std::to_string(*num_bytes) + " bytes for " +
           std::string(dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape) + ", found " +
           std::to_string(tensor.num_bytes()) + " in its " + offsets);
  }
}

}  // namespace

HeaderText parse_header_text(std::string_view text, const std::string& origin) {
  HeaderReader reader(origin);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace tessera::checkpoints
