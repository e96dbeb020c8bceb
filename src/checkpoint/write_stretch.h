#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/file_system.h"

namespace tessera::checkpoints {

/// The fewest bytes that are worth a request of their own to the disk: below this, a request costs more than the copy
/// that it saves. So no shorter stretch is written directly, none is asked to be sent ahead of sync(), no shorter piece
/// of memory is written from where it is, and none is laid out for that.
inline constexpr std::size_t kLeastDirect = std::size_t{256} << 10;

/// Bytes that lie side by side in a file, from several places in memory.
struct WriteStretch {
  std::uint64_t offset = 0;
  std::uint64_t num_bytes = 0;
  std::vector<std::span<const std::byte>> pieces;  // in the order of the file, none empty

  std::uint64_t end() const { return offset + num_bytes; }
  /// Bytes of it from `begin` on, as a place in the file.
  WriteStretch part(std::uint64_t begin, std::uint64_t end) const;
};

/// Sorted; ranges that touch become one stretch, and empty ones vanish. Throws InternalError when two overlap.
std::vector<WriteStretch> join_ranges(std::vector<WriteRange> ranges);

/// The part of a stretch whose ends are multiples of `alignment`, and what is before and behind it. When that part
/// would be shorter than `least`, all is `head`.
struct AlignedStretch {
  WriteStretch head;
  WriteStretch middle;
  WriteStretch tail;
};
AlignedStretch align(const WriteStretch& stretch, std::uint64_t alignment, std::uint64_t least);

}  // namespace tessera::checkpoints
