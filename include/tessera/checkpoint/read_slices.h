#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/saved_step.h>

#include <vector>

namespace tessera {

/// Fills the values of `slices`, in place, from a step that was saved on any number of ranks: the bytes that they need
/// are read, no others. No communication.
/// Throws ConfigError for a tensor that the step does not have, or has in another type or shape; StorageError for
/// damage. Then the values are anything.
void read_slices(const SavedStep& step, const std::vector<HeldSlice>& slices);

}  // namespace tessera
