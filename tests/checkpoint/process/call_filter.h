#pragma once

#include <tessera/core/descriptor.h>

#include <cstdint>
#include <vector>

namespace tessera::testing {

/// A call of the system, by its number.
struct FilteredCall {
  int call = 0;
  int argument = -1;       ///< not negative: only when this argument, counted from 0,
  std::uint32_t bits = 0;  ///< has one of these
  int error = 0;           ///< what a refused call returns in errno
};

/// From now on the kernel refuses these calls to all threads of this process, and to what it starts: as the filters of
/// containers and old file systems do. Throws std::runtime_error where the kernel has no such filters.
void refuse_calls(const std::vector<FilteredCall>& calls);

/// From now on each of these calls stands still until the holder of the returned descriptor answers it.
Descriptor hand_over_calls(const std::vector<int>& calls);

}  // namespace tessera::testing
