#pragma once

#include <tessera/shard/partition.h>
#include <tessera/shard/slice.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// How the ranks along one axis hold a tensor.
///
///   Placement::replicate()      each rank has all of it
///   Placement::shard(0)         each has some rows; the first ranks have the more, the last may have none
///   Placement::shard(0, 3)      the rows are three blocks of one size, such as q, k and v in one weight: some of each
///   Placement::shard(0, 1, 64)  64 rows stay together, such as those of one head
///   Placement::partial()        each has numbers of its own; their sum is the tensor
///
/// Parts are ceiling-sized: of 8 granules, 3 ranks have 3, 3 and 2. Pure arithmetic.
class Placement {
 public:
  enum class Kind : std::uint8_t { kReplicate, kShard, kPartial };

  static Placement replicate() { return {}; }
  static Placement partial();
  /// `dim` from the front, beginning with 0. Throws ConfigError for a negative dimension, or a count below 1.
  static Placement shard(std::int64_t dim, std::int64_t blocks = 1, std::int64_t granule = 1);

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  bool is_shard() const { return kind_ == Kind::kShard; }
  bool is_partial() const { return kind_ == Kind::kPartial; }
  bool shards(std::size_t dim) const { return is_shard() && static_cast<std::size_t>(dim_) == dim; }

  // ---- Of a shard ---------------------------------------------------------------------------------------------------

  std::int64_t dim() const { return dim_; }
  std::int64_t blocks() const { return blocks_; }
  std::int64_t granule() const { return granule_; }

  /// How many indices of each block a rank has, if there are enough, in a dimension of this size. Throws ConfigError
  /// when the blocks do not divide the size.
  std::int64_t chunk(std::int64_t size, int num_parts) const;
  /// Which indices of each block the rank at `part` has.
  Range in_block(std::int64_t size, int num_parts, int part) const;
  /// The same of all blocks, ascending.
  std::vector<Range> indices(std::int64_t size, int num_parts, int part) const;
  std::int64_t local_size(std::int64_t size, int num_parts, int part) const;
  /// Of all parts.
  std::vector<std::int64_t> local_sizes(std::int64_t size, int num_parts) const;

  /// For messages: "replicate", "shard(0)", "shard(0, 3 blocks, granules of 64)", "partial".
  std::string text() const;

  auto operator<=>(const Placement&) const = default;

 private:
  Kind kind_ = Kind::kReplicate;
  std::int64_t dim_ = 0;
  std::int64_t blocks_ = 1;
  std::int64_t granule_ = 1;
};

/// One contiguous part of a tensor: the indices from `start` up to `end` of one dimension.
struct TensorPartition {
  std::int64_t split_dim = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
  int num_partitions = 1;
  int rank = 0;

  /// Ceiling-sized parts: the last ones may be short or empty.
  static TensorPartition of(std::int64_t size, std::int64_t split_dim, int num_partitions, int rank);
  std::int64_t size() const { return end - start; }

  bool operator==(const TensorPartition&) const = default;
};

/// Where a rank stands: how many ranks each axis has, and its coordinate on each.
struct AxisPosition {
  std::vector<int> sizes;
  std::vector<int> coordinates;
};

/// What the rank at that position holds of a tensor, with one placement for each axis. Where several axes shard one
/// dimension, a later axis divides the part that the earlier ones leave. Partial and replicated tensors are whole.
/// Throws ConfigError for a dimension that the shape does not have, and for blocks that do not divide its size.
Slice slice_at(const std::vector<std::int64_t>& shape, const std::vector<Placement>& placements,
               const AxisPosition& position);

/// For messages: "[shard(0), replicate]".
std::string placements_text(const std::vector<Placement>& placements);

}  // namespace tessera
