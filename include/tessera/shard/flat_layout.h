#pragma once

#include <tessera/shard/partition.h>
#include <tessera/shard/slice.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Where tensors lie when they are laid one after another in a flat buffer.
class FlatLayout {
 public:
  struct Item {
    std::string name;
    Slice slice;  ///< which part of the tensor of that name: all of it, or this rank's part if it was cut before
    Range range;  ///< in the buffer

    /// The shape that it has in the buffer.
    std::vector<std::int64_t> shape() const { return slice.selected_shape(); }
  };

  /// Every tensor starts at a multiple of `alignment` elements.
  explicit FlatLayout(std::int64_t alignment = 1) : alignment_(alignment) {}

  /// Requires: the slice takes all elements of the indices that it selects.
  void add(std::string name, Slice slice);

  const std::vector<Item>& items() const { return items_; }
  /// Of the buffer, including the gaps between tensors.
  std::int64_t num_elements() const { return num_elements_; }
  /// Of the tensors alone.
  std::int64_t num_tensor_elements() const;

 private:
  std::int64_t alignment_;
  std::vector<Item> items_;
  std::int64_t num_elements_ = 0;
};

/// What a rank holds of a tensor.
struct RankSlice {
  std::string name;
  int rank = 0;
  Slice slice;
};

/// What each rank holds of each tensor, tensor by tensor, empty parts left out.
std::vector<RankSlice> shards_of(const FlatLayout& layout, const Partition& partition);

}  // namespace tessera
