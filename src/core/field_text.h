#pragma once

#include <tessera/core/options.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// What a message says it expected.
inline constexpr std::string_view kDurationPhrase =
    "a duration such as \"30s\", \"500ms\" or \"2min\", or a number of seconds";

/// "30s", "500ms", "2min", "1h", "1.5s"; a number without a unit counts seconds. Throws ConfigError for anything else,
/// and for a duration that is not a whole number of milliseconds: rounding a wait to 0 would be worse than refusing it.
std::chrono::milliseconds parse_duration(std::string_view text);

/// Throw ConfigError as parse_duration() does.
std::chrono::milliseconds duration_of_seconds(std::int64_t seconds);
std::chrono::milliseconds duration_of_seconds(double seconds);

/// In the largest unit that divides it. parse_duration() returns the same value.
std::string duration_text(std::chrono::milliseconds duration);

/// The text of `value` in a flag.
std::string field_text(const FieldValue& value);

/// The value of `type` that `text` stands for, as field_text() writes it. Throws ConfigError with what was expected and
/// found.
FieldValue parse_field_text(FieldType type, std::string_view text);

/// Checks the choices and stores. Throws ConfigError without the key: the caller names the field in its own way.
void assign_field(const Field& field, void* options, const FieldValue& value);

/// Throws ConfigError as assign_field() does.
void check_choice(const Field& field, const FieldValue& value);

/// The type as a message names it: "an integer", "a list of strings".
std::string_view field_type_phrase(FieldType type);

/// Shortest text that reads back to the same number.
std::string number_text(double number);

}  // namespace tessera
