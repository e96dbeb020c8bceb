#include <tessera/core/error.h>
#include <tessera/shard/placement.h>

#include <algorithm>
#include <numeric>

namespace tessera {

Placement Placement::partial() {
  Placement placement;
  placement.kind_ = Kind::kPartial;
  return placement;
}

Placement Placement::shard(std::int64_t dim, std::int64_t blocks, std::int64_t granule) {
  Placement placement;
  placement.kind_ = Kind::kShard;
  placement.dim_ = dim;
  placement.blocks_ = blocks;
  placement.granule_ = granule;
  if (dim < 0 || blocks < 1 || granule < 1) {
    throw ConfigError("a placement needs a dimension of at least 0, and blocks and granules of at least 1, but is " +
                      placement.text());
  }
  return placement;
}

std::int64_t Placement::chunk(std::int64_t size, int num_parts) const {
  if (size % blocks_ != 0) {
    throw ConfigError("dimension " + std::to_string(dim_) + " has " + std::to_string(size) + " indices, which " +
                      std::to_string(blocks_) + " blocks of one size do not divide (" + text() + ")");
  }
  const std::int64_t num_granules = (size / blocks_ + granule_ - 1) / granule_;
  return (num_granules + num_parts - 1) / num_parts * granule_;
}

Range Placement::in_block(std::int64_t size, int num_parts, int part) const {
  const std::int64_t each = chunk(size, num_parts);
  const std::int64_t block = size / blocks_;
  const std::int64_t start = std::min(block, part * each);
  return {start, std::min(block, start + each) - start};
}

std::vector<Range> Placement::indices(std::int64_t size, int num_parts, int part) const {
  const Range first = in_block(size, num_parts, part);
  std::vector<Range> ranges;
  if (first.size == 0) return ranges;
  for (std::int64_t block = 0; block < blocks_; ++block) {
    ranges.push_back({block * (size / blocks_) + first.start, first.size});
  }
  return ranges;
}

std::int64_t Placement::local_size(std::int64_t size, int num_parts, int part) const {
  return in_block(size, num_parts, part).size * blocks_;
}

std::vector<std::int64_t> Placement::local_sizes(std::int64_t size, int num_parts) const {
  std::vector<std::int64_t> sizes;
  for (int part = 0; part < num_parts; ++part) sizes.push_back(local_size(size, num_parts, part));
  return sizes;
}

std::string Placement::text() const {
  if (kind_ == Kind::kReplicate) return "replicate";
  if (kind_ == Kind::kPartial) return "partial";
  std::string text = "shard(" + std::to_string(dim_);
  if (blocks_ != 1) text += ", " + std::to_string(blocks_) + " blocks";
  if (granule_ != 1) text += ", granules of " + std::to_string(granule_);
  return text + ")";
}

TensorPartition TensorPartition::of(std::int64_t size, std::int64_t split_dim, int num_partitions, int rank) {
  if (num_partitions < 1 || rank < 0 || rank >= num_partitions) {
    throw ConfigError("there is no rank " + std::to_string(rank) + " of " + std::to_string(num_partitions) +
                      " partitions");
  }
  const Range range = Placement::shard(split_dim).in_block(size, num_partitions, rank);
  return {split_dim, range.start, range.end(), num_partitions, rank};
}

Slice slice_at(const std::vector<std::int64_t>& shape, const std::vector<Placement>& placements,
               const AxisPosition& position) {
  if (placements.size() != position.sizes.size()) {
    throw ConfigError("a mesh of " + std::to_string(position.sizes.size()) +
                      " axes needs a placement for each, but there are " + placements_text(placements));
  }
  Slice slice = Slice::whole(shape);
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& placement = placements[axis];
    if (!placement.is_shard()) continue;
    const auto dim = static_cast<std::size_t>(placement.dim());
    if (dim >= shape.size()) {
      throw ConfigError("a tensor of " + std::to_string(shape.size()) + " dimensions cannot be " + placement.text());
    }
    slice = slice.select(
        dim, placement.indices(slice.selected_shape()[dim], position.sizes[axis], position.coordinates[axis]));
  }
  return slice;
}

std::string placements_text(const std::vector<Placement>& placements) {
  std::string text = "[";
  for (const Placement& placement : placements) text += (text.size() > 1 ? ", " : "") + placement.text();
  return text + "]";
}

}  // namespace tessera
