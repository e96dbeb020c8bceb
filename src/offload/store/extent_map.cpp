#include "offload/store/extent_map.h"

#include <tessera/core/error.h>

#include <iterator>

namespace tessera::offload {

void ExtentMap::grow(std::uint64_t num_bytes) {
  const Extent more{capacity_, num_bytes};
  capacity_ += num_bytes;
  if (num_bytes > 0) add_gap(more);
}

std::optional<Extent> ExtentMap::take(std::uint64_t num_bytes) {
  const std::uint64_t wanted = rounded(num_bytes);
  if (wanted == 0) return Extent{};
  const auto smallest = by_length_.lower_bound({wanted, 0});
  if (smallest == by_length_.end()) return std::nullopt;
  const Extent gap{smallest->second, smallest->first};
  remove_gap(gaps_.find(gap.offset));
  if (gap.num_bytes > wanted) add_gap({gap.offset + wanted, gap.num_bytes - wanted});
  return Extent{gap.offset, wanted};
}

std::uint64_t ExtentMap::lacking(std::uint64_t num_bytes) const {
  const std::uint64_t wanted = rounded(num_bytes);
  if (!by_length_.empty() && by_length_.rbegin()->first >= wanted) return 0;
  // What is free at the end is joined with what is added.
  if (gaps_.empty()) return wanted;
  const auto& [offset, length] = *gaps_.rbegin();
  return offset + length == capacity_ ? wanted - length : wanted;
}

void ExtentMap::give_back(const Extent& extent) {
  if (extent.num_bytes == 0) return;
  if (extent.end() > capacity_) throw InternalError("an extent was given back that nobody had taken");
  add_gap(extent);
}

void ExtentMap::add_gap(const Extent& gap) {
  Extent joined = gap;
  auto next = gaps_.lower_bound(gap.offset);
  if (next != gaps_.end()) {
    if (next->first < gap.end()) throw InternalError("an extent was given back twice");
    if (next->first == gap.end()) {
      joined.num_bytes += next->second;
      const auto old = next++;
      remove_gap(old);
    }
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second > gap.offset) throw InternalError("an extent was given back twice");
    if (before->first + before->second == gap.offset) {
      joined = {before->first, before->second + joined.num_bytes};
      remove_gap(before);
    }
  }
  gaps_.emplace(joined.offset, joined.num_bytes);
  by_length_.emplace(joined.num_bytes, joined.offset);
  free_bytes_ += joined.num_bytes;
}

void ExtentMap::remove_gap(std::map<std::uint64_t, std::uint64_t>::iterator gap) {
  by_length_.erase({gap->second, gap->first});
  free_bytes_ -= gap->second;
  gaps_.erase(gap);
}

}  // namespace tessera::offload
