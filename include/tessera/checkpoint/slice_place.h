#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace tessera {

/// Which elements of a tensor: a box of it, seen with the shape `view`, which has as many elements as the tensor. Rows
/// of a weight are a box of its own shape; a stretch of its elements, laid out row by row, is a box of one dimension.
struct SlicePlace {
  std::vector<std::int64_t> view;
  std::vector<std::int64_t> starts;  ///< in every dimension of the view
  std::vector<std::int64_t> sizes;

  static SlicePlace whole(const std::vector<std::int64_t>& shape);
  /// `size` elements from `start` on, of a tensor with `num_elements`.
  static SlicePlace stretch(std::int64_t num_elements, std::int64_t start, std::int64_t size);

  /// Of the box. Requires: the box lies in its view, and the view's elements can be counted.
  std::int64_t num_elements() const;

  auto operator<=>(const SlicePlace&) const = default;
};

}  // namespace tessera
