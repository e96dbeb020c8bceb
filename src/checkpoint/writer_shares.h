#pragma once

#include <tessera/checkpoint/slice_place.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::checkpoints {

/// A slice that is to be written once, and who holds it.
struct SharedSlice {
  SlicePlace place;
  std::uint64_t file_offset = 0;  ///< of its first byte, when it is a stretch
  std::int64_t element_bytes = 0;
  std::vector<int> ranks;         ///< ascending
  std::vector<std::size_t> held;  ///< for each of these ranks, which of its slices
};

/// A part of a SharedSlice that one rank writes.
struct WriterShare {
  std::size_t slice = 0;   ///< in what was given
  std::size_t holder = 0;  ///< in SharedSlice::ranks
  SlicePlace place;
  std::int64_t first = 0;  ///< the element of the slice with which it starts
};

/// The elements of a slice as one stretch of the tensor laid out row by row; nothing when they are not one.
std::optional<SlicePlace> as_stretch(const SlicePlace& place);

/// Shares out what is held by several ranks, see SavePlan. `slices` come in the order of the files. Pure arithmetic.
std::vector<WriterShare> share_out(const std::vector<SharedSlice>& slices);

}  // namespace tessera::checkpoints
