#pragma once

#include <tessera/shard/partition.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Which elements of a tensor, and in which order: what a rank holds of it, or what a file has.
///
/// First some indices are selected in each dimension: one or more ranges, ascending. They give a smaller tensor, as
/// tensor parallelism makes it: rows, columns, or the three parts of a fused projection's rows. Then a range of the
/// smaller tensor's elements is taken, in row-major order, as sharding does. So a slice of a slice is a slice. Elements
/// keep the order that they have in the tensor.
///
/// Pure arithmetic: no memory, no communication. Throws ConfigError for indices or elements outside of the tensor.
class Slice {
 public:
  /// Of a tensor with one element and no dimension.
  Slice() = default;
  static Slice whole(std::vector<std::int64_t> shape);
  /// In every dimension the indices from `starts` on, `sizes` of them.
  static Slice box(std::vector<std::int64_t> shape, const std::vector<std::int64_t>& starts,
                   const std::vector<std::int64_t>& sizes);
  /// A range of the tensor's elements, in row-major order.
  static Slice extent(std::vector<std::int64_t> shape, Range elements);

  /// Of the selected tensor, only these indices of one dimension. Ranges ascend and do not overlap.
  /// Requires: part() was not called.
  Slice select(std::size_t dim, const std::vector<Range>& indices) const;
  Slice narrow(std::size_t dim, Range indices) const { return select(dim, {indices}); }
  /// A range of these elements, in their order.
  Slice part(Range elements) const;
  /// The slice that results when `inner` is taken of a tensor that consists of these elements.
  Slice then(const Slice& inner) const;

  /// Of the tensor.
  const std::vector<std::int64_t>& shape() const { return shape_; }
  /// In each dimension, before range() is taken.
  const std::vector<std::vector<Range>>& indices() const { return indices_; }
  const Range& range() const { return range_; }
  /// Of a tensor of the selected indices, before range() is taken.
  std::vector<std::int64_t> selected_shape() const;
  std::int64_t num_elements() const { return range_.size; }
  std::int64_t num_tensor_elements() const;

  bool is_whole() const { return range_.size == num_tensor_elements(); }
  /// Whether it takes all elements of the selected indices.
  bool takes_all_selected() const;
  /// As one range of the tensor's elements, in row-major order; nullopt when the elements are not one range.
  std::optional<Range> as_extent() const;
  /// The same elements in a normal form, as far as that is cheap: a slice that is one extent is written as an extent,
  /// and indices without elements are left out. Slices with different elements of one tensor have different forms.
  Slice canonical() const;
  /// A range of indices in each dimension.
  using Box = std::vector<Range>;
  /// The same elements as boxes, in no particular order; nullopt when there would be more than `most`.
  std::optional<std::vector<Box>> boxes(std::size_t most) const;

  /// For messages: "elements 8:15 of [0:4, 2:4+6:8] of [4, 8]".
  std::string text() const;

  auto operator<=>(const Slice&) const = default;

 private:
  std::vector<std::int64_t> shape_;
  std::vector<std::vector<Range>> indices_;
  Range range_{0, 1};
};

/// The number of elements of a tensor. Throws ConfigError when it cannot be counted, or a size is below 0.
std::int64_t num_elements_of(const std::vector<std::int64_t>& shape);

}  // namespace tessera
