#include "checkpoint/writer_shares.h"

#include <algorithm>
#include <map>

namespace tessera::checkpoints {
namespace {

// Cuts lie at multiples of it in the file, so that no two ranks write into one page.
constexpr std::uint64_t kPage = 4096;

std::uint64_t slice_bytes(const SharedSlice& slice) {
  return static_cast<std::uint64_t>(slice.slice.num_elements() * slice.element_bytes);
}

/// The bytes that one set of ranks holds, end to end, and how they are cut.
struct Row {
  std::uint64_t num_bytes = 0;
  std::uint64_t done = 0;

  // The products stay below 64 bits up to a petabyte on 8,000 ranks.
  /// Which of `num_parts` equal parts holds this byte.
  std::size_t part_of(std::uint64_t byte, std::size_t num_parts) const { return byte * num_parts / num_bytes; }
  /// The first byte of a part.
  std::uint64_t start_of(std::size_t part, std::size_t num_parts) const {
    return (num_bytes * part + num_parts - 1) / num_parts;
  }
};

/// Cuts a stretch where the parts of the row end.
void cut_stretch(const SharedSlice& slice, std::size_t index, const Row& row, std::vector<WriterShare>& shares) {
  const std::size_t num_parts = slice.ranks.size();
  const std::uint64_t size = slice_bytes(slice);
  std::uint64_t begin = 0;
  while (begin < size) {
    const std::size_t part = row.part_of(row.done + begin, num_parts);
    std::uint64_t end = size;
    if (part + 1 < num_parts && row.start_of(part + 1, num_parts) < row.done + size) {
      const std::uint64_t cut = slice.file_offset + row.start_of(part + 1, num_parts) - row.done;
      end = std::min((cut + kPage - 1) / kPage * kPage - slice.file_offset, size);
    }
    const auto first = static_cast<std::int64_t>(begin) / slice.element_bytes;
    const auto count = static_cast<std::int64_t>(end - begin) / slice.element_bytes;
    shares.push_back({index, part, {first, count}});
    begin = end;
  }
}

}  // namespace

std::vector<WriterShare> share_out(const std::vector<SharedSlice>& slices) {
  std::map<std::vector<int>, Row> rows;
  for (const SharedSlice& slice : slices) rows[slice.ranks].num_bytes += slice_bytes(slice);
  std::vector<WriterShare> shares;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const SharedSlice& slice = slices[i];
    Row& row = rows[slice.ranks];
    if (slice.slice.as_stretch()) {
      cut_stretch(slice, i, row, shares);
    } else {
      const std::uint64_t middle = row.done + slice_bytes(slice) / 2;
      shares.push_back({i, row.part_of(middle, slice.ranks.size()), {0, slice.slice.num_elements()}});
    }
    row.done += slice_bytes(slice);
  }
  return shares;
}

}  // namespace tessera::checkpoints
