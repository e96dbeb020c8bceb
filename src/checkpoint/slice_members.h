#pragma once

#include <tessera/shard/slice.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::checkpoints {

/// A slice as texts say it, in lists of numbers: docs/formats/checkpoint.md.
struct SliceMembers {
  static constexpr std::size_t kMostRanges = 4096;

  std::vector<std::int64_t> view;
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> ranges;  ///< how many of each dimension; none: one
  std::vector<std::int64_t> part;    ///< the first element and their number; none: all

  /// Whether version 1 of the format can say it.
  bool is_box() const { return ranges.empty() && part.empty(); }
};

/// Throws ConfigError for more ranges than the format allows.
SliceMembers members_of(const Slice& slice);

/// Of a tensor with this shape. Throws ConfigError for what is none.
Slice slice_of(const SliceMembers& members, const std::vector<std::int64_t>& shape);

}  // namespace tessera::checkpoints
