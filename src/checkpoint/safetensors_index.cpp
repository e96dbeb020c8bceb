#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/error.h>

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/json_text.h"
#include "checkpoint/safetensors_header.h"

namespace tessera {
namespace {

using checkpoints::is_plain_name;
using checkpoints::shown;
using Json = nlohmann::json;

/// Parses with no key twice in an object. Refuses depth too, since a deep tree costs far more than its text.
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
