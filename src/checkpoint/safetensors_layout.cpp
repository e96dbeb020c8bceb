#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "checkpoint/safetensors_header.h"

namespace tessera {
namespace {

using namespace checkpoints;

constexpr std::uint64_t kLengthBytes = 8;

std::uint64_t read_length(std::span<const std::byte> file) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  return length;
}

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (std::size_t i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>((length >> (8 * i)) & 0xff);
  return bytes;
}

/// The text of the header, of which the first and the last character are looked at here.
std::string_view header_text(std::span<const std::byte> file, const std::string& origin) {
  const auto refuse = [&origin](const std::string& fault) -> void {
    throw StorageError(origin + " is no safetensors file: " + fault);
  };
  if (file.size() < kLengthBytes) {
    refuse("expected at least 8 bytes, found " + std::to_string(file.size()));
  }
  const std::uint64_t length = read_length(file);
  if (length > SafetensorsLayout::kMaxHeaderBytes) {
    refuse("it states a header of " + std::to_string(length) + " bytes, and at most " +
           std::to_string(SafetensorsLayout::kMaxHeaderBytes) + " are allowed");
  }
  if (length > file.size() - kLengthBytes) {
    refuse("it states a header of " + std::to_string(length) + " bytes, and only " +
           std::to_string(file.size() - kLengthBytes) + " follow");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    refuse("the header must begin with {" +
           (text.empty() ? ", and it is empty" : ", found " + shown(text.substr(0, 1))));
  }
  const std::string_view json = text.substr(0, text.find_last_not_of(' ') + 1);
  if (json.back() != '}') refuse("the header must end with } and spaces, found " + shown(json.substr(json.size() - 1)));
  return json;
}

/// Throws unless the tensors, in the order of their bytes, follow one another without holes and fill the file.
void check_cover(const std::vector<StoredTensor>& tensors, std::uint64_t num_data_bytes, const std::string& origin) {
  std::uint64_t end = 0;
  const StoredTensor* former = nullptr;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != end) {
      throw StorageError(origin + ": tensor " + shown(tensor.name) + ": expected it to start at byte " +
                         std::to_string(end) + " of the data" +
                         (former == nullptr ? "" : ", where " + shown(former->name) + " ends") + ", found byte " +
                         std::to_string(tensor.begin) +
                         (tensor.begin > end ? ": the bytes between belong to no tensor" : ": they overlap"));
    }
    end = tensor.end;
    former = &tensor;
  }
  if (end != num_data_bytes) {
    throw StorageError(origin + ": expected " + std::to_string(end) + " bytes of tensors behind the header, found " +
                       std::to_string(num_data_bytes) +
                       (end > num_data_bytes ? ": the file was cut short" : ": something was added to the file"));
  }
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(std::vector<StoredTensor> tensors, Metadata metadata)
    : tensors_(std::move(tensors)), metadata_(std::move(metadata)), by_name_(tensors_.size()) {
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  std::sort(by_name_.begin(), by_name_.end(),
            [this](std::size_t a, std::size_t b) { return tensors_[a].name < tensors_[b].name; });
}

SafetensorsLayout SafetensorsLayout::plan(std::vector<StoredTensor> tensors, Metadata metadata,
                                          std::uint64_t alignment) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });
  std::uint64_t end = 0;
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == kMetadataKey) throw ConfigError("a tensor cannot be called __metadata__ in a safetensors file");
    const auto num_bytes = bytes_of(tensor.dtype, tensor.shape);
    if (!num_bytes || *num_bytes > static_cast<std::uint64_t>(INT64_MAX) - end) {
      throw ConfigError("tensor " + shown(tensor.name) + " of shape " + shape_text(tensor.shape) +
                        " does not fit into a safetensors file");
    }
    tensor.begin = end;
    tensor.end = end += *num_bytes;
  }
  SafetensorsLayout layout(std::move(tensors), std::move(metadata));
  for (std::size_t i = 1; i < layout.by_name_.size(); ++i) {
    const std::string& name = layout.tensors_[layout.by_name_[i]].name;
    if (layout.tensors_[layout.by_name_[i - 1]].name == name) {
      throw ConfigError("tensor " + shown(name) + " is listed twice for one safetensors file");
    }
  }
  layout.alignment_ = alignment;
  layout.data_start_ = layout.header().size();
  if (layout.data_start_ - kLengthBytes > kMaxHeaderBytes) {
    throw ConfigError("the header of this safetensors file would have " + std::to_string(layout.data_start_) +
                      " bytes, and at most " + std::to_string(kMaxHeaderBytes) +
                      " are allowed: write fewer tensors into one file");
  }
  return layout;
}

SafetensorsLayout SafetensorsLayout::parse(std::span<const std::byte> start, std::uint64_t num_file_bytes,
                                           const std::string& origin) {
  const std::string_view text = header_text(start, origin);
  HeaderText header = parse_header_text(text, origin);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const std::uint64_t data_start = kLengthBytes + read_length(start);
  check_cover(header.tensors, num_file_bytes - data_start, origin);
  SafetensorsLayout layout(std::move(header.tensors), std::move(header.metadata));
  layout.data_start_ = data_start;
  return layout;
}

const StoredTensor* SafetensorsLayout::find(std::string_view name) const {
  const auto place = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [this](std::size_t i, std::string_view n) { return tensors_[i].name < n; });
  return place != by_name_.end() && tensors_[*place].name == name ? &tensors_[*place] : nullptr;
}

const StoredTensor& SafetensorsLayout::at(std::string_view name, std::string_view origin) const {
  const StoredTensor* found = find(name);
  if (found != nullptr) return *found;
  std::string message = std::string(origin) + " has no tensor " + shown(name) + "; it holds " +
                        std::to_string(tensors_.size()) + " tensors";
  if (!tensors_.empty()) message += ", the first of them " + shown(tensors_[by_name_[0]].name);
  throw ConfigError(message);
}

std::string SafetensorsLayout::header() const {
  std::string text = make_header_text(tensors_, metadata_);
  const std::uint64_t padded = (kLengthBytes + text.size() + alignment_ - 1) / alignment_ * alignment_;
  text.resize(padded - kLengthBytes, ' ');
  return length_bytes(text.size()) + text;
}

}  // namespace tessera
