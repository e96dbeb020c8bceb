#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// What a message expects.
inline constexpr std::string_view kDurationPhrase =
    "a duration such as \"30s\", \"500ms\" or \"2min\", or a number of seconds";

/// "30s", "500ms", "2min", "1h", "1.5s"; a number without a unit counts seconds. Throws ConfigError for anything else,
/// and for what is no whole number of milliseconds: rounding a wait to none would be worse than refusing it.
std::chrono::milliseconds parse_duration(std::string_view text);

/// Throw ConfigError as parse_duration() does.
std::chrono::milliseconds duration_of_seconds(std::int64_t seconds);
std::chrono::milliseconds duration_of_seconds(double seconds);

/// In the largest unit that divides it: parse_duration() gives the same value back.
std::string duration_text(std::chrono::milliseconds duration);

}  // namespace tessera
