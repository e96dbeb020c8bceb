#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/core/error.h>
#include <tessera/core/mapped_file.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/format/byte_ranges.h"
#include "checkpoint/format/safetensors_header.h"

namespace tessera {
namespace {

struct Known {
  std::string_view name;
  std::int64_t num_bytes;
};

// In the order of the enumerators.
constexpr std::array kKnown = {
    Known{"BOOL", 1}, Known{"U8", 1},  Known{"I8", 1},  Known{"F8_E5M2", 1}, Known{"F8_E4M3", 1}, Known{"F8_E8M0", 1},
    Known{"I16", 2},  Known{"U16", 2}, Known{"F16", 2}, Known{"BF16", 2},    Known{"I32", 4},     Known{"U32", 4},
    Known{"F32", 4},  Known{"C64", 8}, Known{"F64", 8}, Known{"I64", 8},     Known{"U64", 8},
};
static_assert(kKnown.size() == static_cast<std::size_t>(StoredDtype::kU64) + 1);

const Known& known(StoredDtype dtype) { return kKnown.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::string_view dtype_name(StoredDtype dtype) { return known(dtype).name; }

std::optional<StoredDtype> dtype_of_name(std::string_view name) {
  for (std::size_t i = 0; i < kKnown.size(); ++i) {
    if (kKnown[i].name == name) return static_cast<StoredDtype>(i);
  }
  return std::nullopt;
}

std::int64_t dtype_bytes(StoredDtype dtype) { return known(dtype).num_bytes; }

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

/// The text of the header. Checks its length, its first and its last character.
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

namespace {

using checkpoints::shown;
namespace fs = std::filesystem;

SafetensorsIndex read_index(const fs::path& path) {
  const MappedFile file(path);
  if (file.bytes().size() > SafetensorsLayout::kMaxHeaderBytes) {
    throw StorageError(path.string() + ": expected an index of at most " +
                       std::to_string(SafetensorsLayout::kMaxHeaderBytes) + " bytes, found " +
                       std::to_string(file.bytes().size()));
  }
  return SafetensorsIndex::parse(file.text(), path.string());
}

}  // namespace

SafetensorsBytes::SafetensorsBytes(const std::filesystem::path& path)
    : path_(path),
      file_(std::make_shared<MappedFile>(path)),
      layout_(std::make_shared<SafetensorsLayout>(SafetensorsLayout::parse(file_->bytes(), path.string()))) {}

std::span<const std::byte> SafetensorsBytes::bytes(const std::string& name) const {
  const StoredTensor& stored = layout_->at(name, path_.string());
  return file_->bytes().subspan(layout_->data_start() + stored.begin, stored.num_bytes());
}

SafetensorsFolderBytes::SafetensorsFolderBytes(const fs::path& path) : path_(path) {
  if (!fs::is_directory(path)) {
    if (path.extension() == ".json") {
      open_indexed(path);
    } else {
      open_single(path);
    }
    return;
  }
  const fs::path single = path / kSingleFileName;
  const fs::path index = path / kIndexFileName;
  const bool has_single = fs::exists(single);
  const bool has_index = fs::exists(index);
  if (has_single == has_index) {
    throw ConfigError(path.string() + " holds " + (has_single ? "both " : "neither ") + std::string(kSingleFileName) +
                      (has_single ? " and " : " nor ") + std::string(kIndexFileName) +
                      (has_single ? "; name the one that is meant" : "; expected one of them"));
  }
  if (has_index) {
    open_indexed(index);
  } else {
    open_single(single);
  }
}

void SafetensorsFolderBytes::open_single(const fs::path& file) {
  files_.emplace_back(file);
  for (const StoredTensor& tensor : files_.back().layout().tensors()) place_of_.emplace(tensor.name, 0);
}

void SafetensorsFolderBytes::open_indexed(const fs::path& index_path) {
  const SafetensorsIndex index = read_index(index_path);
  for (const std::string& name : index.files()) {
    files_.emplace_back(index_path.parent_path() / name);
    for (const StoredTensor& tensor : files_.back().layout().tensors()) {
      const auto listed = index.file_of.find(tensor.name);
      if (listed == index.file_of.end() || listed->second != name) {
        throw StorageError(files_.back().path().string() + " holds tensor " + shown(tensor.name) + ", which " +
                           index_path.filename().string() +
                           (listed == index.file_of.end() ? " does not list" : " lists in " + shown(listed->second)));
      }
      place_of_.emplace(tensor.name, files_.size() - 1);
    }
  }
  for (const auto& [name, file] : index.file_of) {
    if (place_of_.contains(name)) continue;
    throw StorageError(index_path.string() + " lists tensor " + shown(name) + " in " + shown(file) +
                       ", which does not hold it");
  }
}

std::vector<std::string> SafetensorsFolderBytes::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : place_of_) names.push_back(name);
  return names;
}

const SafetensorsBytes& SafetensorsFolderBytes::file_with(const std::string& name) const {
  const auto place = place_of_.find(name);
  if (place != place_of_.end()) return files_[place->second];
  throw ConfigError(path_.string() + " has no tensor " + shown(name) + "; it holds " +
                    std::to_string(place_of_.size()) + " tensors");
}

const StoredTensor& SafetensorsFolderBytes::at(const std::string& name) const {
  return file_with(name).layout().at(name, path_.string());
}

namespace {

using checkpoints::is_plain_name;
using checkpoints::shown;
using Json = nlohmann::json;

/// Parses, and refuses duplicate keys in an object. Refuses deep nesting too: a deep tree costs far more than its text.
Json parse_strictly(std::string_view text, const std::string& origin) {
  constexpr int kMaxDepth = 8;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) throw StorageError(origin + ": expected an index of safetensors files, found deep nesting");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw StorageError(origin + ": the key " + shown(value.get<std::string>()) + " stands twice");
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    throw StorageError(origin + ": expected an index of safetensors files, found no JSON: " + shown(error.what()));
  }
}

}  // namespace

std::vector<std::string> SafetensorsIndex::files() const {
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of) names.insert(file);
  return {names.begin(), names.end()};
}

SafetensorsIndex SafetensorsIndex::parse(std::string_view text, const std::string& origin) {
  const Json document = parse_strictly(text, origin);
  const auto map = document.is_object() ? document.find("weight_map") : document.end();
  if (!document.is_object() || map == document.end() || !map->is_object()) {
    throw StorageError(origin + ": expected an object with the object weight_map, which maps tensors to files");
  }
  SafetensorsIndex index;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      throw StorageError(origin + ": tensor " + shown(name) +
                         ": expected the name of a file in the same folder, found " +
                         (file.is_string() ? shown(file.get<std::string>()) : file.type_name()));
    }
    index.file_of.emplace(name, file.get<std::string>());
  }
  const auto metadata = document.find("metadata");
  if (metadata != document.end() && metadata->is_object() && metadata->contains("total_size")) {
    const Json& size = metadata->at("total_size");
    // Written as 1234.0 by some programs.
    const bool whole_float = size.is_number_float() && size.get<double>() >= 0 && size.get<double>() < 0x1p53;
    if (!size.is_number_unsigned() && !whole_float) {
      throw StorageError(origin + ": total_size: expected a number of bytes, found " + shown(size.dump()));
    }
    index.num_bytes =
        size.is_number_unsigned() ? size.get<std::uint64_t>() : static_cast<std::uint64_t>(size.get<double>());
  }
  return index;
}

std::string SafetensorsIndex::to_json() const {
  const Json document = {{"metadata", {{"total_size", num_bytes}}}, {"weight_map", file_of}};
  try {
    return document.dump(2) + "\n";
  } catch (const Json::exception&) {
    throw ConfigError("an index of safetensors files holds UTF-8 names only");
  }
}

std::string shard_name(std::size_t place, std::size_t num_shards) {
  if (num_shards == 1) return std::string(kSingleFileName);
  const auto padded = [](std::size_t number) {
    const std::string digits = std::to_string(number);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return "model-" + padded(place + 1) + "-of-" + padded(num_shards) + ".safetensors";
}

}  // namespace tessera

namespace tessera::checkpoints {

bool ByteRanges::add(std::uint64_t begin, std::uint64_t end) {
  if (begin == end) return true;
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.end() && next->first < end) return false;
  auto former = next == ranges_.begin() ? ranges_.end() : std::prev(next);
  if (former != ranges_.end() && former->second > begin) return false;
  if (next != ranges_.end() && next->first == end) {
    end = next->second;
    ranges_.erase(next);
  }
  if (former != ranges_.end() && former->second == begin) {
    former->second = end;
  } else {
    ranges_.emplace(begin, end);
  }
  return true;
}

std::optional<std::uint64_t> ByteRanges::first_missing(std::uint64_t num_bytes) const {
  if (num_bytes == 0) return std::nullopt;
  const auto first = ranges_.begin();
  if (first == ranges_.end() || first->first > 0) return 0;
  if (first->second < num_bytes) return first->second;
  return std::nullopt;
}

}  // namespace tessera::checkpoints
