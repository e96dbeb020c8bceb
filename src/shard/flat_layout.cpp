#include <tessera/shard/flat_layout.h>

#include <functional>
#include <numeric>
#include <utility>

namespace tessera {

void FlatLayout::add(std::string name, std::vector<std::int64_t> shape) {
  const auto size = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  const auto start = (num_elements_ + alignment_ - 1) / alignment_ * alignment_;
  items_.push_back({std::move(name), std::move(shape), {start, size}});
  num_elements_ = start + size;
}

std::int64_t FlatLayout::num_tensor_elements() const {
  return std::accumulate(items_.begin(), items_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Item& item) { return sum + item.range.size; });
}

std::vector<ShardInfo> shards_of(const FlatLayout& layout, const Partition& partition, int this_rank) {
  std::vector<ShardInfo> shards;
  for (const auto& item : layout.items()) {
    for (int rank = 0; rank < partition.num_parts(); ++rank) {
      const Range held = item.range.meet(partition.of(rank));
      if (held.size == 0) continue;
      shards.push_back({item.name, rank, held.start - item.range.start, held.size, item.shape, rank == this_rank});
    }
  }
  return shards;
}

}  // namespace tessera
