#include <tessera/core/error.h>
#include <tessera/shard/flat_layout.h>
#include <tessera/shard/partition.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace tessera {

Range Range::meet(const Range& other) const {
  const auto from = std::max(start, other.start);
  return {from, std::max<std::int64_t>(0, std::min(end(), other.end()) - from)};
}

Partition::Partition(std::int64_t num_elements, int num_parts, std::int64_t granule)
    : num_elements_(num_elements), num_parts_(num_parts), granule_(granule) {
  if (num_elements < 0 || num_parts < 1 || granule < 1) {
    throw InternalError("a partition of " + std::to_string(num_elements) + " elements into " +
                        std::to_string(num_parts) + " parts of granules of " + std::to_string(granule));
  }
}

Range Partition::of(int part) const {
  const std::int64_t num_granules = (num_elements_ + granule_ - 1) / granule_;
  const std::int64_t each = num_granules / num_parts_;
  const std::int64_t num_longer = num_granules % num_parts_;
  const auto start_of = [&](std::int64_t p) {
    return std::min(num_elements_, (p * each + std::min(p, num_longer)) * granule_);
  };
  return {start_of(part), start_of(part + 1) - start_of(part)};
}

std::vector<std::int64_t> Partition::sizes() const {
  std::vector<std::int64_t> sizes;
  for (int part = 0; part < num_parts_; ++part) sizes.push_back(of(part).size);
  return sizes;
}

void FlatLayout::add(std::string name, Slice slice) {
  const auto start = (num_elements_ + alignment_ - 1) / alignment_ * alignment_;
  const auto size = slice.num_elements();
  items_.push_back({std::move(name), std::move(slice), {start, size}});
  num_elements_ = start + size;
}

std::int64_t FlatLayout::num_tensor_elements() const {
  return std::accumulate(items_.begin(), items_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Item& item) { return sum + item.range.size; });
}

std::vector<RankSlice> shards_of(const FlatLayout& layout, const Partition& partition) {
  std::vector<RankSlice> shards;
  for (const auto& item : layout.items()) {
    for (int rank = 0; rank < partition.num_parts(); ++rank) {
      const Range held = item.range.meet(partition.of(rank));
      if (held.size == 0) continue;
      shards.push_back({item.name, rank, item.slice.part({held.start - item.range.start, held.size})});
    }
  }
  return shards;
}

}  // namespace tessera
