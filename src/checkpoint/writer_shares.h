#pragma once

#include <tessera/shard/slice.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::checkpoints {

/// A slice that is to be written once, and who holds it.
struct SharedSlice {
  Slice slice;                    ///< canonical
  std::uint64_t file_offset = 0;  ///< of its first byte, when it is a stretch
  std::int64_t element_bytes = 0;
  std::vector<int> ranks;         ///< ascending
  std::vector<std::size_t> held;  ///< for each of these ranks, which of its slices
};

/// A part of a SharedSlice that one rank writes.
struct WriterShare {
  std::size_t slice = 0;   ///< in what was given
  std::size_t holder = 0;  ///< in SharedSlice::ranks
  Range part;              ///< of its elements
};

/// Shares out what is held by several ranks, see SavePlan. `slices` come in the order of the files. Pure arithmetic.
std::vector<WriterShare> share_out(const std::vector<SharedSlice>& slices);

}  // namespace tessera::checkpoints
