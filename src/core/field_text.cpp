#include "core/field_text.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "core/nearest_key.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

// Largest first: duration_text() takes the first that divides.
constexpr std::array<std::pair<std::string_view, std::int64_t>, 4> kUnits = {
    {{"h", 3'600'000}, {"min", 60'000}, {"s", 1'000}, {"ms", 1}}};

[[noreturn]] void refuse(const std::string& found) {
  throw ConfigError("expected " + std::string(kDurationPhrase) + ", found " + found);
}

std::optional<milliseconds> scale(std::int64_t count, std::int64_t unit) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(count, unit, &product)) {
    return std::nullopt;
  }
  return milliseconds(product);
}

std::optional<milliseconds> scale(double count, std::int64_t unit) {
  const double product = count * static_cast<double>(unit);
  const double whole = std::round(product);
  // Decimal fractions are not exact in binary: 0.007 seconds must be 7 ms though the product is off in its last bit.
  const bool is_whole = std::abs(product - whole) <= 1e-14 * std::max(1.0, std::abs(product));
  if (!is_whole || !(std::abs(whole) < static_cast<double>(std::numeric_limits<std::int64_t>::max()))) {
    return std::nullopt;
  }
  return milliseconds(static_cast<std::int64_t>(whole));
}

std::optional<std::int64_t> unit_of(std::string_view suffix) {
  if (suffix.empty()) {
    return 1'000;
  }
  for (const auto& [name, size] : kUnits) {
    if (name == suffix) {
      return size;
    }
  }
  return std::nullopt;
}

template <class N>
std::optional<N> parse_number(std::string_view text) {
  N number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return number;
}

std::optional<milliseconds> try_parse(std::string_view text) {
  const auto num_digits = text.find_first_not_of("+-.0123456789");
  const auto digits = text.substr(0, num_digits);
  const auto unit = unit_of(num_digits == std::string_view::npos ? "" : text.substr(num_digits));
  if (!unit) {
    return std::nullopt;
  }
  if (const auto count = parse_number<std::int64_t>(digits)) {
    return scale(*count, *unit);
  }
  if (const auto count = parse_number<double>(digits)) {
    return scale(*count, *unit);
  }
  return std::nullopt;
}

}  // namespace

milliseconds parse_duration(std::string_view text) {
  const auto duration = try_parse(text);
  if (!duration) {
    refuse(in_quotes(text));
  }
  return *duration;
}

milliseconds duration_of_seconds(std::int64_t seconds) {
  const auto duration = scale(seconds, 1'000);
  if (!duration) {
    refuse(std::to_string(seconds));
  }
  return *duration;
}

milliseconds duration_of_seconds(double seconds) {
  const auto duration = scale(seconds, 1'000);
  if (!duration) {
    refuse(std::to_string(seconds));
  }
  return *duration;
}

std::string duration_text(milliseconds duration) {
  const std::int64_t count = duration.count();
  if (count == 0) {
    return "0s";
  }
  for (const auto& [name, size] : kUnits) {
    if (count % size == 0) {
      return std::to_string(count / size) + std::string(name);
    }
  }
  throw InternalError("no unit divides a whole number of milliseconds");
}

namespace {

[[noreturn]] void refuse(FieldType type, std::string_view text) {
  throw ConfigError("expected " + std::string(field_type_phrase(type)) + ", found " + in_quotes(text));
}

template <class N>
N parse_number(FieldType type, std::string_view text, std::string_view item) {
  N number{};
  const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
  if (error != std::errc() || end != item.data() + item.size()) {
    refuse(type, text);
  }
  return number;
}

bool parse_bool(std::string_view text) {
  if (text != "true" && text != "false") {
    refuse(FieldType::kBool, text);
  }
  return text == "true";
}

std::vector<std::string> parse_strings(FieldType type, std::string_view text) {
  auto items = split_list(text);
  if (!items) {
    refuse(type, text);
  }
  return *std::move(items);
}

std::vector<std::int64_t> parse_integers(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (const std::string& item : parse_strings(FieldType::kIntegerList, text)) {
    numbers.push_back(parse_number<std::int64_t>(FieldType::kIntegerList, text, item));
  }
  return numbers;
}

struct TextOf {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return number_text(value); }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(std::chrono::milliseconds value) const { return duration_text(value); }
  std::string operator()(const std::vector<std::string>& items) const { return join_list(items); }
  std::string operator()(const std::vector<std::int64_t>& items) const {
    std::string text;
    for (const auto item : items) {
      text += (text.empty() ? "" : ",") + std::to_string(item);
    }
    return text;
  }
};

}  // namespace

std::string_view field_type_phrase(FieldType type) {
  switch (type) {
    case FieldType::kBool:
      return "true or false";
    case FieldType::kInteger:
      return "an integer";
    case FieldType::kNumber:
      return "a number";
    case FieldType::kString:
      return "a string";
    case FieldType::kDuration:
      return kDurationPhrase;
    case FieldType::kStringList:
      return "a list of strings";
    case FieldType::kIntegerList:
      return "a list of integers";
  }
  throw InternalError("a field type without a phrase");
}

std::string number_text(double number) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  return std::string(buffer.data(), end);
}

std::string field_text(const FieldValue& value) { return std::visit(TextOf(), value); }

FieldValue parse_field_text(FieldType type, std::string_view text) {
  switch (type) {
    case FieldType::kBool:
      return parse_bool(text);
    case FieldType::kInteger:
      return parse_number<std::int64_t>(type, text, text);
    case FieldType::kNumber:
      return parse_number<double>(type, text, text);
    case FieldType::kString:
      return std::string(text);
    case FieldType::kDuration:
      return parse_duration(text);
    case FieldType::kStringList:
      return parse_strings(type, text);
    case FieldType::kIntegerList:
      return parse_integers(text);
  }
  throw InternalError("a field type without a parser");
}

void check_choice(const Field& field, const FieldValue& value) {
  if (field.choices.empty()) {
    return;
  }
  const std::string found = field_text(value);
  if (std::find(field.choices.begin(), field.choices.end(), found) != field.choices.end()) {
    return;
  }
  std::string message = "expected one of " + list_in_quotes(field.choices) + ", found " + in_quotes(found);
  if (const auto meant = nearest(found, field.choices)) {
    message += "; did you mean " + in_quotes(*meant) + "?";
  }
  throw ConfigError(message);
}

void assign_field(const Field& field, void* options, const FieldValue& value) {
  check_choice(field, value);
  field.set(options, value);
}

}  // namespace tessera
