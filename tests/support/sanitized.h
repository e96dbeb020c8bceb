#pragma once

namespace tessera::testing {

/// How many times as long a test may take where a sanitizer watches: its own work is not what is measured.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSanitizerSlowdown = 100;
#else
inline constexpr int kSanitizerSlowdown = 1;
#endif

}  // namespace tessera::testing
