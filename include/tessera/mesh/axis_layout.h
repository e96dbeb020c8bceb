#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class AxisSlice;

/// One named axis of a layout.
struct AxisSpec {
  std::string name;  ///< a letter, then letters, digits, '_' and '-'; not "self"
  int size = 1;

  bool operator==(const AxisSpec&) const = default;
};

/// The ranks that differ in one coordinate only, as arithmetic.
struct AxisLine {
  int start = 0;
  int stride = 1;
  int count = 1;

  int rank_at(int index) const { return start + index * stride; }
  std::vector<int> ranks() const;

  bool operator==(const AxisLine&) const = default;
};

/// How ranks are laid out on named axes: coordinates to rank and back. Pure arithmetic; memory is O(axes), whatever the
/// number of ranks. Axes are numbered as declared; `order` alone decides which of them varies fastest.
class AxisLayout {
 public:
  /// `order` names all axes from the slowest to the fastest; empty means as declared, the last one fastest.
  /// Throws ConfigError with every fault of the names, the sizes and the order.
  explicit AxisLayout(std::vector<AxisSpec> axes, const std::vector<std::string>& order = {});

  int num_axes() const { return static_cast<int>(axes_.size()); }
  int num_ranks() const { return num_ranks_; }
  const std::vector<AxisSpec>& axes() const { return axes_; }
  const std::string& name(int axis) const { return axes_[checked_axis(axis)].name; }
  int size(int axis) const { return axes_[checked_axis(axis)].size; }
  /// The distance between the ranks of two neighbours on the axis.
  int stride(int axis) const { return strides_[checked_axis(axis)]; }
  /// The names from the slowest to the fastest.
  std::vector<std::string> order() const;

  /// Throws ConfigError, naming the axes there are, when there is none of that name.
  int axis_index(std::string_view name) const;
  std::vector<int> axis_indices(const std::vector<std::string>& names) const;

  /// Throws ConfigError when there is no such rank.
  void check_rank(int rank) const;
  int coordinate(int axis, int rank) const;
  /// One coordinate for each axis, in the order of declaration.
  std::vector<int> coordinates(int rank) const;
  int rank_at(const std::vector<int>& coordinates) const;

  /// The line of `axis` through `rank`.
  AxisLine line(int axis, int rank) const;
  /// Lines of an axis are numbered by their first rank, ascending.
  int num_lines(int axis) const { return num_ranks_ / size(axis); }
  int line_number(int axis, int rank) const;
  AxisLine line_at(int axis, int number) const;

  /// The layout of these axes alone, numbered as listed here, varying in the same relative order as in this layout.
  AxisLayout sub_layout(const std::vector<int>& axes) const;
  /// All axes but these, as declared.
  std::vector<int> other_axes(const std::vector<int>& axes) const;
  /// The ranks that share `rank`'s coordinates on all axes but these.
  AxisSlice slice(const std::vector<int>& axes, int rank) const;
  /// Slices of the same axes are numbered by their first rank, ascending.
  int num_slices(const std::vector<int>& axes) const;
  AxisSlice slice_at(const std::vector<int>& axes, int number) const;

  bool operator==(const AxisLayout&) const = default;

 private:
  std::size_t checked_axis(int axis) const;

  std::vector<AxisSpec> axes_;
  std::vector<int> strides_;
  std::vector<int> slowest_first_;
  int num_ranks_ = 1;
};

/// The ranks of a layout that vary along some of its axes while the other coordinates are fixed: what a sub-mesh is
/// made of. Members are in ascending order of rank. Memory is O(axes).
class AxisSlice {
 public:
  /// Prefer `AxisLayout::slice`.
  AxisSlice(const AxisLayout& parent, const std::vector<int>& axes, int rank);

  int size() const { return layout_.num_ranks(); }
  /// Which of the slices along the same axes this is.
  int number() const { return number_; }
  /// The layout of the members' indices.
  const AxisLayout& layout() const { return layout_; }

  /// The parent's rank of a member.
  int rank_at(int index) const;
  int rank_at(const std::vector<int>& coordinates) const;
  /// The position of one of the parent's ranks among the members. Requires: it is a member (ConfigError).
  int index_of(int rank) const;
  bool contains(int rank) const;
  std::vector<int> ranks() const;

 private:
  std::vector<int> coordinates_of(int rank) const;

  AxisLayout layout_;
  std::vector<int> strides_;  // of the slice's axes in the parent
  int start_ = 0;             // the parent's rank of member 0
  int number_ = 0;
};

}  // namespace tessera
