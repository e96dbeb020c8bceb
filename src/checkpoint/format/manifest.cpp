#include <tessera/checkpoint/manifest.h>
#include <tessera/core/error.h>
#include <tessera/disk/checksum.h>
#include <tessera/shard/slice_cover.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/format/manifest_reader.h"
#include "checkpoint/format/safetensors_header.h"

namespace tessera {
namespace {

using namespace checkpoints;

constexpr std::string_view kRootStart = R"(,"root":")";
constexpr std::string_view kRootEnd = "\"}\n";
constexpr std::size_t kRootDigits = 32;
constexpr std::size_t kTailBytes = kRootStart.size() + kRootDigits + kRootEnd.size();

std::string json(const std::string& text) { return json_text(text, "a manifest"); }

auto key_of(const ManifestTensor& tensor) { return std::tie(tensor.group, tensor.name); }
bool comes_before(const ManifestTensor& a, const ManifestTensor& b) { return key_of(a) < key_of(b); }

void check_root(std::string_view text, const std::string& origin) {
  const std::string_view tail = text.size() < kTailBytes ? "" : text.substr(text.size() - kTailBytes);
  if (!tail.starts_with(kRootStart) || !tail.ends_with(kRootEnd)) {
    throw StorageError(origin + ": expected a manifest that ends with its root, found " +
                       (text.empty() ? "an empty file" : "something else: it was cut short, or is no manifest"));
  }
  const std::string_view stated = tail.substr(kRootStart.size(), kRootDigits);
  const std::string found = root_checksum_of(text.substr(0, text.size() - kTailBytes));
  if (stated != found) {
    throw StorageError(origin + " is damaged: it states the root " + shown(stated) + ", and its text has " + found);
  }
  if (text.find('\n') != text.size() - 1)
    throw StorageError(origin + ": expected a manifest on one line, found several");
}

void append_file(std::string& text, const ManifestFile& file) {
  text += R"({"name":)" + json(file.name) + R"(,"bytes":)" + std::to_string(file.num_bytes);
  if (file.header_bytes > 0)
    text += R"(,"header_bytes":)" + std::to_string(file.header_bytes) + R"(,"header_checksum":")";
  if (file.header_bytes == 0) text += R"(,"checksum":")";
  text += checksum_text(file.checksum) + "\"}";
}

/// Raises `version` to the first version of the format that can express the slice, so that older readers still read
/// most steps.
void append_slice(std::string& text, const ManifestSlice& slice, int& version) {
  const SliceMembers members = members_of(slice.slice);
  const auto append = [&text](const char* name, const std::vector<std::int64_t>& numbers) {
    text += std::string(",\"") + name + "\":";
    append_json_list(text, numbers);
  };
  if (!members.is_box()) version = 2;
  text += R"({"rank":)" + std::to_string(slice.rank);
  append("view", members.view);
  append("starts", members.starts);
  append("sizes", members.sizes);
  if (!members.ranges.empty()) append("ranges", members.ranges);
  if (!members.part.empty()) append("part", members.part);
  text += R"(,"checksums":")";
  for (const std::uint64_t checksum : slice.checksums) text += checksum_text(checksum);
  text += "\"}";
}

/// "[" and each element by `append`, with commas between, and "]".
template <typename Elements, typename Append>
void append_list(std::string& text, const Elements& elements, Append append) {
  text += '[';
  for (const auto& element : elements) {
    if (text.back() != '[') text += ',';
    append(text, element);
  }
  text += ']';
}

void append_tensor(std::string& text, const ManifestTensor& tensor, int& version) {
  text += R"({"name":)" + json(tensor.name) + R"(,"group":)" + json(tensor.group) + R"(,"dtype":")" +
          std::string(dtype_name(tensor.dtype)) + R"(","shape":)";
  append_json_list(text, tensor.shape);
  text += R"(,"file":)" + std::to_string(tensor.file) + R"(,"slices":)";
  append_list(text, tensor.slices,
              [&version](std::string& into, const ManifestSlice& slice) { append_slice(into, slice, version); });
  text += '}';
}

std::string value_text(const std::string& name, const ManifestValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return json(*text);
  if (const auto* number = std::get_if<double>(&value)) {
    if (!std::isfinite(*number)) {
      throw ConfigError("the value " + shown(name) + " of a checkpoint is " + std::to_string(*number) +
                        ", and a manifest holds finite numbers only");
    }
    return nlohmann::json(*number).dump();
  }
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  return std::get<bool>(value) ? "true" : "false";
}

}  // namespace

const ManifestTensor* Manifest::find(std::string_view group, std::string_view name) const {
  const auto wanted = std::make_pair(group, name);
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), wanted, [](const ManifestTensor& tensor, const auto& key) {
        return std::make_pair(std::string_view(tensor.group), std::string_view(tensor.name)) < key;
      });
  return found != tensors.end() && found->group == group && found->name == name ? &*found : nullptr;
}

Manifest Manifest::parse(std::string_view text, const std::string& origin) {
  check_root(text, origin);
  Manifest manifest = read_manifest_text(text, origin);
  std::stable_sort(manifest.tensors.begin(), manifest.tensors.end(), comes_before);
  check_manifest(manifest, origin);
  return manifest;
}

std::string Manifest::to_json() const {
  int version = 1;
  std::string listed;
  append_list(listed, tensors,
              [&version](std::string& into, const ManifestTensor& tensor) { append_tensor(into, tensor, version); });
  std::string text = R"({"format":"tessera-checkpoint","version":)" + std::to_string(version) + R"(,"step":)" +
                     std::to_string(step) + R"(,"num_ranks":)" + std::to_string(num_ranks) + R"(,"block_bytes":)" +
                     std::to_string(block_bytes) + R"(,"files":)";
  append_list(text, files, append_file);
  text += R"(,"tensors":)" + listed;
  text += R"(,"values":{)";
  for (const auto& [name, value] : values) {
    if (text.back() != '{') text += ',';
    text += json(name) + ":" + value_text(name, value);
  }
  text += '}';
  const std::string root = root_checksum_of(text);
  return text.append(kRootStart).append(root).append(kRootEnd);
}

std::uint64_t num_blocks(std::uint64_t num_bytes, std::uint64_t block_bytes) {
  return num_bytes / block_bytes + (num_bytes % block_bytes == 0 ? 0 : 1);
}

std::vector<std::uint64_t> block_checksums(std::span<const std::byte> bytes, std::uint64_t block_bytes) {
  std::vector<std::uint64_t> checksums;
  checksums.reserve(num_blocks(bytes.size(), block_bytes));
  for (std::size_t begin = 0; begin < bytes.size(); begin += block_bytes) {
    checksums.push_back(checksum_of(bytes.subspan(begin, std::min<std::size_t>(block_bytes, bytes.size() - begin))));
  }
  return checksums;
}

}  // namespace tessera

namespace tessera::checkpoints {
namespace {

[[noreturn]] void refuse(const std::string& origin, const std::string& fault) {
  throw StorageError(origin + ": " + fault);
}

void check_files(const Manifest& manifest, const std::string& origin) {
  std::set<std::string_view> names;
  for (const ManifestFile& file : manifest.files) {
    if (!is_plain_name(file.name) || file.name == kManifestName) {
      refuse(origin, "expected the name of another file in the same folder, found " + shown(file.name));
    }
    if (!names.insert(file.name).second) refuse(origin, "file " + shown(file.name) + " stands there twice");
    if (file.header_bytes > file.num_bytes) {
      refuse(origin, "file " + shown(file.name) + " has " + std::to_string(file.num_bytes) +
                         " bytes, and a header of " + std::to_string(file.header_bytes));
    }
  }
}

class TensorCheck {
 public:
  TensorCheck(const Manifest& manifest, const ManifestTensor& tensor, const std::string& origin)
      : manifest_(manifest), tensor_(tensor), origin_(origin) {}

  void run() const {
    if (tensor_.file >= manifest_.files.size()) {
      fail("it lies in file " + std::to_string(tensor_.file) + ", and there are " +
           std::to_string(manifest_.files.size()));
    }
    const ManifestFile& file = manifest_.files[tensor_.file];
    if (file.header_bytes == 0) fail("it lies in " + shown(file.name) + ", which is no safetensors file");
    if (!bytes_of(tensor_.dtype, tensor_.shape)) {
      fail("the shape " + shape_text(tensor_.shape) + " has more elements than can be counted");
    }
    std::vector<const Slice*> slices;
    for (std::size_t i = 0; i < tensor_.slices.size(); ++i) {
      check_slice(tensor_.slices[i], "slice " + std::to_string(i));
      slices.push_back(&tensor_.slices[i].slice);
    }
    const auto fault = cover_fault(num_elements_of(tensor_.shape), slices);
    if (fault) fail(fault->text());
  }

 private:
  [[noreturn]] void fail(const std::string& fault) const {
    refuse(origin_, "tensor " + shown(tensor_.name) + " of " + shown(tensor_.group) + ": " + fault);
  }

  void check_slice(const ManifestSlice& slice, const std::string& what) const {
    if (slice.rank >= manifest_.num_ranks) {
      fail(what + ": expected a rank below " + std::to_string(manifest_.num_ranks) + ", found " +
           std::to_string(slice.rank));
    }
    const auto num_bytes =
        static_cast<std::uint64_t>(slice.slice.num_elements()) * static_cast<std::uint64_t>(dtype_bytes(tensor_.dtype));
    const std::uint64_t expected = num_blocks(num_bytes, manifest_.block_bytes);
    if (slice.checksums.size() != expected) {
      fail(what + ": expected " + std::to_string(expected) + " checksums for its " + std::to_string(num_bytes) +
           " bytes, found " + std::to_string(slice.checksums.size()));
    }
  }

  const Manifest& manifest_;
  const ManifestTensor& tensor_;
  const std::string& origin_;
};

}  // namespace

void check_manifest(const Manifest& manifest, const std::string& origin) {
  check_files(manifest, origin);
  std::set<std::pair<std::size_t, std::string_view>> in_files;
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest.tensors[i];
    if (i > 0 && manifest.tensors[i - 1].group == tensor.group && manifest.tensors[i - 1].name == tensor.name) {
      refuse(origin, "tensor " + shown(tensor.name) + " stands twice in " + shown(tensor.group));
    }
    TensorCheck(manifest, tensor, origin).run();
    if (!in_files.emplace(tensor.file, tensor.name).second) {
      refuse(origin, "two tensors " + shown(tensor.name) + " lie in " + shown(manifest.files[tensor.file].name));
    }
  }
}

}  // namespace tessera::checkpoints
