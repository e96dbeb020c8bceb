#pragma once

namespace tessera::testing {

/// How many times as long a test may take where a sanitizer watches: its own work is not what is measured.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)  // g++
inline constexpr int kSanitizerSlowdown = 100;
#elif defined(__has_feature) && (__has_feature(thread_sanitizer) || __has_feature(address_sanitizer))  // clang
inline constexpr int kSanitizerSlowdown = 100;
#else
inline constexpr int kSanitizerSlowdown = 1;
#endif

}  // namespace tessera::testing
