#pragma once

#include <atomic>
#include <cstdint>

namespace tessera {

/// The progress of a transfer. The threads that move bytes count them; the thread that shows the progress reads the
/// counts now and then.
/// Thread-safety: both members may be used from any thread.
struct ByteCount {
  std::atomic<std::uint64_t> total = 0;  ///< to be moved, as far as that is known
  std::atomic<std::uint64_t> done = 0;
};

}  // namespace tessera
