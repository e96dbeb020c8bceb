#pragma once

#include <tessera/checkpoint/slice_place.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::checkpoints {

/// Whether places hold each element of a tensor exactly once; if not, what is wrong: "slices 1 and 2 overlap at
/// element 20". Fast for stretches and for boxes of one view, however large; places of different views may not have
/// more than some million runs. What cannot be told in bounded time is a fault too.
/// Requires: every place lies in its view, which has `num_elements`.
std::optional<std::string> cover_fault(std::int64_t num_elements, const std::vector<const SlicePlace*>& places);

}  // namespace tessera::checkpoints
