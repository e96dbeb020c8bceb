#include <tessera/shard/flat_layout.h>

#include <numeric>
#include <utility>

namespace tessera {

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
