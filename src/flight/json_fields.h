#pragma once

#include <tessera/core/error.h>
#include <tessera/flight/snapshot.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera::flight {

/// Throws ConfigError for a fraction, for what does not fit and for what is no number: the library would convert all
/// of them, the second with undefined behaviour.
template <typename Integer>
Integer whole_number(const nlohmann::json& value) {
  if (value.is_number_unsigned() && std::in_range<Integer>(value.get<std::uint64_t>())) return value.get<Integer>();
  if (value.is_number_integer() && !value.is_number_unsigned() && std::in_range<Integer>(value.get<std::int64_t>())) {
    return value.get<Integer>();
  }
  throw ConfigError(std::string("expected a whole number that fits, found ") + value.type_name());
}

template <typename Integer>
std::vector<Integer> whole_numbers(const nlohmann::json& list) {
  std::vector<Integer> numbers;
  for (const auto& value : list) numbers.push_back(whole_number<Integer>(value));
  return numbers;
}

/// Reads a whole number into a field.
template <typename Integer>
void read_number(const nlohmann::json& object, const char* key, Integer& field) {
  field = whole_number<Integer>(object.at(key));
}

/// With the `num_calls` latest calls.
nlohmann::json to_object(const Snapshot& snapshot, std::size_t num_calls);
/// Throws nlohmann::json::exception, or ConfigError, for what is not a snapshot.
Snapshot snapshot_from(const nlohmann::json& object);

}  // namespace tessera::flight
