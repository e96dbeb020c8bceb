#pragma once

#include <tessera/shard/slice.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Why slices do not hold each element of a tensor exactly once.
struct CoverFault {
  enum class Kind { kGap, kOverlap, kTooCutUp };
  Kind kind = Kind::kGap;
  std::int64_t element = 0;         ///< held by no slice, or by two
  std::array<std::size_t, 2> both;  ///< the slices of an overlap, the lower one first

  /// "slices 1 and 2 overlap at element 20"
  std::string text() const;
};

/// Nullopt if the slices hold each element of a tensor exactly once. Fast for extents, and for slices of one shape,
/// however large; slices of different shapes may have at most some million runs. If it cannot be decided in bounded
/// time, that is a fault too. Requires: the shape of every slice has `num_elements`.
std::optional<CoverFault> cover_fault(std::int64_t num_elements, const std::vector<const Slice*>& slices);

}  // namespace tessera
