#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/comm/world.h>

#include <cstdint>
#include <string>

namespace tessera::testing {

/// All bytes of these follow from the number of the step and the version: a step that is saved again is another version
/// of it. A tensor in two extents, one in two boxes whose rows meet in the file, and one that every rank holds.
RankState numbered_state(const World& world, std::int64_t step, std::int64_t version);

/// The version that a step holds.
std::int64_t version_of(const SavedStep& step);

/// What is not as it must be in a step that was saved so: whatever verify() finds, and tensors with another bit than
/// its number and version give. Empty: nothing.
std::string faults_of(const SavedStep& step);

/// As above, of what one rank reads: its part.
std::string faults_of_part(const World& world, const SavedStep& step);

}  // namespace tessera::testing
