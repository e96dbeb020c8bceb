#include "checkpoint/safetensors_header.h"

#include <limits>

#include "checkpoint/json_text.h"

namespace tessera::checkpoints {
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

}  // namespace tessera::checkpoints
