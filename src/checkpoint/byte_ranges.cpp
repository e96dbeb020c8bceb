#include "checkpoint/byte_ranges.h"

#include <iterator>

namespace tessera::checkpoints {

bool ByteRanges::add(std::uint64_t begin, std::uint64_t end) {
  if (begin == end) return true;
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.end() && next->first < end) return false;
  auto former = next == ranges_.begin() ? ranges_.end() : std::prev(next);
  if (former != ranges_.end() && former->second > begin) return false;
  if (next != ranges_.end() && next->first == end) {
    end = next->second;
    ranges_.erase(next);
  }
  if (former != ranges_.end() && former->second == begin) {
    former->second = end;
  } else {
    ranges_.emplace(begin, end);
  }
  return true;
}

std::optional<std::uint64_t> ByteRanges::first_missing(std::uint64_t num_bytes) const {
  if (num_bytes == 0) return std::nullopt;
  const auto first = ranges_.begin();
  if (first == ranges_.end() || first->first > 0) return 0;
  if (first->second < num_bytes) return first->second;
  return std::nullopt;
}

}  // namespace tessera::checkpoints
