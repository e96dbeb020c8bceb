#pragma once

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)  // g++
#define TESSERA_SANITIZED
#elif defined(__has_feature)  // clang; g++ 12 cannot read the next line
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define TESSERA_SANITIZED
#endif
#endif

namespace tessera::testing {

/// How many times as long a test may take where a sanitizer watches: its own work is not what is measured.
#ifdef TESSERA_SANITIZED
inline constexpr int kSanitizerSlowdown = 100;
#else
inline constexpr int kSanitizerSlowdown = 1;
#endif

}  // namespace tessera::testing
