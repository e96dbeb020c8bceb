#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <ranges>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace tessera::testing {

/// For ranks: a check that fails ends the rank, so that the others fail too and the test reports it.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

/// A value as text: of an optional its value, of a container its elements, of an enumerator its number.
template <typename T>
std::string text_of(const T& value) {
  if constexpr (std::same_as<T, std::nullopt_t>) {
    return "nothing";
  } else if constexpr (std::same_as<T, std::byte> || std::is_enum_v<T>) {
    return std::to_string(static_cast<std::int64_t>(value));
  } else if constexpr (requires(std::ostream& stream) { stream << value; }) {
    std::ostringstream stream;
    stream << std::boolalpha << value;
    return stream.str();
  } else if constexpr (requires { value.has_value(), *value; }) {
    return value.has_value() ? text_of(*value) : "nothing";
  } else if constexpr (requires { value.first, value.second; }) {
    return text_of(value.first) + ": " + text_of(value.second);
  } else if constexpr (std::ranges::range<const T>) {
    std::string text;
    for (const auto& element : value) text += (text.empty() ? "" : ", ") + text_of(element);
    return "[" + text + "]";
  } else {
    return "(a value without a text)";
  }
}

template <typename Found, typename Expected>
bool are_equal(const Found& found, const Expected& expected) {
  constexpr bool kBothWhole = std::integral<Found> && std::integral<Expected>;
  if constexpr (kBothWhole && !std::same_as<Found, bool> && !std::same_as<Expected, bool> &&
                !std::same_as<Found, char> && !std::same_as<Expected, char>) {
    return std::cmp_equal(found, expected);
  } else {
    return found == expected;
  }
}

/// As `require`, and says what was found and expected. For tensors: support/require_tensors.h.
template <typename Found, typename Expected>
void require_equal(const Found& found, const Expected& expected, const std::string& what) {
  if (are_equal(found, expected)) return;
  throw std::runtime_error(what + ": found " + text_of(found) + ", expected " + text_of(expected));
}

}  // namespace tessera::testing
