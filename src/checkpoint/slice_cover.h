#pragma once

#include <tessera/checkpoint/slice_place.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::checkpoints {

/// Why places do not hold each element of a tensor exactly once.
struct CoverFault {
  enum class Kind { kGap, kOverlap, kTooCutUp };
  Kind kind = Kind::kGap;
  std::int64_t element = 0;         ///< that no place holds, or two
  std::array<std::size_t, 2> both;  ///< the places of an overlap, the lower one first

  /// "slices 1 and 2 overlap at element 20"
  std::string text() const;
};

/// Nothing if places hold each element of a tensor exactly once. Fast for stretches and for boxes of one view, however
/// large; places of different views may not have more than some million runs. What cannot be told in bounded time is a
/// fault too. Requires: every place lies in its view, which has `num_elements`.
std::optional<CoverFault> cover_fault(std::int64_t num_elements, const std::vector<const SlicePlace*>& places);

}  // namespace tessera::checkpoints
