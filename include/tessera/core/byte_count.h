#pragma once

#include <atomic>
#include <cstdint>

namespace tessera {

/// How far a transfer is. Those who move bytes count them; who shows it looks now and then.
/// Thread-safety: both members may be used from any thread.
struct ByteCount {
  std::atomic<std::uint64_t> total = 0;  ///< to be moved, as far as that is known
  std::atomic<std::uint64_t> done = 0;
};

}  // namespace tessera
