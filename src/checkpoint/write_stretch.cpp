#include "checkpoint/write_stretch.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <string>

namespace tessera::checkpoints {

WriteStretch WriteStretch::part(std::uint64_t begin, std::uint64_t end) const {
  WriteStretch part{begin, end - begin, {}};
  std::uint64_t place = offset;
  for (const std::span<const std::byte> piece : pieces) {
    const std::uint64_t first = std::max(place, begin);
    const std::uint64_t last = std::min(place + piece.size(), end);
    if (first < last) part.pieces.push_back(piece.subspan(first - place, last - first));
    place += piece.size();
    if (place >= end) break;
  }
  return part;
}

std::vector<WriteStretch> join_ranges(std::vector<WriteRange> ranges) {
  std::ranges::sort(ranges, {}, &WriteRange::offset);
  std::vector<WriteStretch> stretches;
  for (const WriteRange& range : ranges) {
    if (range.bytes.empty()) continue;
    const std::uint64_t end = stretches.empty() ? 0 : stretches.back().end();
    if (range.offset < end) {
      throw InternalError("a range to write begins at byte " + std::to_string(range.offset) +
                          ", and the one before it ends at byte " + std::to_string(end));
    }
    if (stretches.empty() || range.offset > end) stretches.push_back({range.offset, 0, {}});
    stretches.back().num_bytes += range.bytes.size();
    stretches.back().pieces.push_back(range.bytes);
  }
  return stretches;
}

AlignedStretch align(const WriteStretch& stretch, std::uint64_t alignment, std::uint64_t least) {
  const std::uint64_t begin = (stretch.offset + alignment - 1) / alignment * alignment;
  const std::uint64_t end = stretch.end() / alignment * alignment;
  if (end < begin || end - begin < least) return {stretch, {}, {}};
  return {stretch.part(stretch.offset, begin), stretch.part(begin, end), stretch.part(end, stretch.end())};
}

}  // namespace tessera::checkpoints
