#include "checkpoint/plan/write_extent.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <string>

namespace tessera::checkpoints {

WriteExtent WriteExtent::part(std::uint64_t begin, std::uint64_t end) const {
  WriteExtent part{begin, end - begin, {}};
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

std::vector<WriteExtent> join_ranges(std::vector<WriteRange> ranges) {
  std::ranges::sort(ranges, {}, &WriteRange::offset);
  std::vector<WriteExtent> extents;
  for (const WriteRange& range : ranges) {
    if (range.bytes.empty()) continue;
    const std::uint64_t end = extents.empty() ? 0 : extents.back().end();
    if (range.offset < end) {
      throw InternalError("a range to write begins at byte " + std::to_string(range.offset) +
                          ", and the one before it ends at byte " + std::to_string(end));
    }
    if (extents.empty() || range.offset > end) extents.push_back({range.offset, 0, {}});
    extents.back().num_bytes += range.bytes.size();
    extents.back().pieces.push_back(range.bytes);
  }
  return extents;
}

AlignedExtent align(const WriteExtent& extent, std::uint64_t alignment, std::uint64_t least) {
  const std::uint64_t begin = (extent.offset + alignment - 1) / alignment * alignment;
  const std::uint64_t end = extent.end() / alignment * alignment;
  if (end < begin || end - begin < least) return {extent, {}, {}};
  return {extent.part(extent.offset, begin), extent.part(begin, end), extent.part(end, extent.end())};
}

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kLineBytes = 64;

/// The first place from `begin` on that is `rest` above a multiple of `unit`.
std::size_t next_place(std::size_t begin, std::size_t rest, std::size_t unit) {
  return begin + (rest + unit - begin % unit) % unit;
}

}  // namespace

CopyLayout CopyLayout::of(const SavePlan& plan, int rank) {
  CopyLayout layout;
  for (const PlannedWrite& planned : plan.of_rank[static_cast<std::size_t>(rank)]) {
    const std::size_t num_bytes = plan.bytes_of(planned);
    const std::size_t place = num_bytes < kLeastDirect
                                  ? next_place(layout.num_bytes, 0, kLineBytes)
                                  : next_place(layout.num_bytes, plan.offset_of(planned) % kPageBytes, kPageBytes);
    layout.places.push_back(place);
    layout.num_bytes = place + num_bytes;
  }
  return layout;
}

}  // namespace tessera::checkpoints
