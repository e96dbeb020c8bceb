#include "core/duration.h"
#include <tessera/core/error.h>
#include "core/quoting.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

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

}  // namespace tessera
