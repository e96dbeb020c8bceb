#pragma once

#include <string>

namespace tessera::testing {

/// From now on the kernel refuses this process, and says so when it is tried: "exchange" of two names, "direct" I/O, a
/// "ring" of io_uring, or a "submission" to one. Throws std::runtime_error when it is not refused all the same.
void refuse_call(const std::string& name);

}  // namespace tessera::testing
