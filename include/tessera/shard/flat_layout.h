#pragma once

#include <tessera/shard/partition.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Where tensors lie when they are laid one after another in a row of elements.
class FlatLayout {
 public:
  struct Item {
    std::string name;
    std::vector<std::int64_t> shape;
    Range range;  ///< in the row
  };

  /// Every tensor starts at a multiple of `alignment` elements.
  explicit FlatLayout(std::int64_t alignment = 1) : alignment_(alignment) {}

  void add(std::string name, std::vector<std::int64_t> shape);

  const std::vector<Item>& items() const { return items_; }
  /// Of the row, gaps between tensors among them.
  std::int64_t num_elements() const { return num_elements_; }
  /// Of the tensors alone.
  std::int64_t num_tensor_elements() const;

 private:
  std::int64_t alignment_;
  std::vector<Item> items_;
  std::int64_t num_elements_ = 0;
};

/// The part of a tensor that a rank holds, as elements of the tensor laid out row by row.
struct ShardInfo {
  std::string name;
  int rank = 0;
  std::int64_t start = 0;
  std::int64_t size = 0;
  std::vector<std::int64_t> original_shape;
  bool is_local = false;  ///< this rank's own
};

/// What each rank holds of each tensor, tensor by tensor, empty parts left out.
std::vector<ShardInfo> shards_of(const FlatLayout& layout, const Partition& partition, int this_rank);

}  // namespace tessera
