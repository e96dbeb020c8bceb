#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/plan/save_plan.h"

namespace tessera::checkpoints {

/// The fewest bytes that are worth a request of their own to the disk: below this, a request costs more than the copy
/// that it saves. So a shorter extent is neither written directly nor sent to the disk ahead of sync(), and a shorter
/// piece of memory is copied into a buffer rather than aligned and written from where it is.
inline constexpr std::size_t kLeastDirect = std::size_t{256} << 10;

/// Bytes that lie side by side in a file, from several places in memory.
struct WriteExtent {
  std::uint64_t offset = 0;
  std::uint64_t num_bytes = 0;
  std::vector<std::span<const std::byte>> pieces;  // in the order of the file, none empty

  std::uint64_t end() const { return offset + num_bytes; }
  /// Its bytes from `begin` to `end`, which are offsets in the file.
  WriteExtent part(std::uint64_t begin, std::uint64_t end) const;
};

/// Sorts ranges and joins those that touch into one extent; drops empty ones. Throws InternalError when two overlap.
std::vector<WriteExtent> join_ranges(std::vector<WriteRange> ranges);

/// The part of an extent whose ends are multiples of `alignment`, and what is before and behind it. When that part
/// would be shorter than `least`, all is `head`.
struct AlignedExtent {
  WriteExtent head;
  WriteExtent middle;
  WriteExtent tail;
};
AlignedExtent align(const WriteExtent& extent, std::uint64_t alignment, std::uint64_t least);

/// Where the slices that a rank writes lie in its copy of them.
///
/// A large slice has the same offset within a page as in its file, so that direct I/O writes it from there without a
/// further copy.
struct CopyLayout {
  std::vector<std::size_t> places;  ///< for each of SavePlan::of_rank, if the copy begins at a page
  std::size_t num_bytes = 0;

  static CopyLayout of(const SavePlan& plan, int rank);

  bool operator==(const CopyLayout&) const = default;
};

}  // namespace tessera::checkpoints
