#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/observe/tracer.h>

#include <cstdint>
#include <functional>

namespace tessera::comm {

/// Returns nanoseconds. A test may give each rank another clock.
using ReadClock = std::function<std::int64_t()>;

/// How far rank 0's clock is ahead of this rank's.
///
/// Note [Clocks along a tree]
/// Each rank asks its parent in the binomial tree several times, uses the quickest answer, and adds the parent's own
/// offset to it. A parent answers its children one after another: no rank has more than O(log N) children, and rank 0
/// does not answer all ranks. The bounds of the error add up along the path.
///
/// Collective: over the group.
observe::ClockOffset compare_clocks(const Communicator& ranks, const ReadClock& now_ns);

}  // namespace tessera::comm
