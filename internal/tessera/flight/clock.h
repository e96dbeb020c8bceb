#pragma once

#include <cstdint>
#include <string>

namespace tessera::flight {

/// The clock of all records, in nanoseconds since 1970. It is the system's clock, so that hosts can be compared.
std::int64_t now_ns();
constexpr double seconds_of(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

/// "5.0 s"
std::string seconds_text(std::int64_t nanoseconds);

}  // namespace tessera::flight
