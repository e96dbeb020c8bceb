#pragma once

#include <algorithm>
#include <chrono>

namespace tessera::store {

/// The point in time after `timeout`; one so long that it would overflow is far away.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  constexpr std::chrono::hours kFarAway{24 * 365};
  return std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kFarAway);
}

}  // namespace tessera::store
