#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/observe/clock_offset.h>

#include <cstdint>
#include <functional>

namespace tessera::comm {

/// Nanoseconds; a test may give each rank another one.
using ReadClock = std::function<std::int64_t()>;

/// How far rank 0's clock is ahead of this rank's.
///
/// Note [Clocks along a tree]
/// Each rank asks its parent in the binomial tree some times, takes the quickest answer, and adds what the parent found
/// of its own. A parent answers its children one after another, so nobody waits for more than O(log N) of them, and
/// rank 0 does not answer all. The bounds of the error add up along the way.
///
/// Collective: over the group.
observe::ClockOffset compare_clocks(const Communicator& ranks, const ReadClock& now_ns);

}  // namespace tessera::comm
