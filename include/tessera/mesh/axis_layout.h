#pragma once

#include <tessera/comm/topology.h>

#include <optional>
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

/// How many ranks lie along each axis of a three-dimensional layout.
struct ThreeDSizes {
  int dp = 1;
  int tp = 1;
  int pp = 1;

  bool operator==(const ThreeDSizes&) const = default;
};

/// Where a rank lies in a three-dimensional layout.
struct ThreeDCoordinates {
  int dp = 0;
  int tp = 0;
  int pp = 0;  ///< the pipeline stage

  bool operator==(const ThreeDCoordinates&) const = default;
};

/// Rank to (dp, tp, pp) and back, with the neighbours and groups that follow from it. Pure arithmetic: nothing
/// communicates. Every function that takes a rank throws ConfigError when there is no such rank.
class RankMapping {
 public:
  /// `topology` is what the launcher said about nodes (`world.topology()`). `order` names the axes from the slowest to
  /// the fastest. Throws ConfigError for sizes below 1, a wrong order, or a topology of another number of ranks.
  RankMapping(const ThreeDSizes& sizes, Topology topology, const std::vector<std::string>& order = default_order());

  /// {"dp", "tp", "pp"}: neighbouring ranks are neighbouring stages of a pipeline.
  static std::vector<std::string> default_order() { return {"dp", "tp", "pp"}; }

  int num_ranks() const { return layout_.num_ranks(); }
  ThreeDSizes sizes() const;
  const AxisLayout& layout() const { return layout_; }

  ThreeDCoordinates coordinates(int rank) const;
  int rank_at(const ThreeDCoordinates& coordinates) const;

  /// The ranks that differ from `rank` only along `axis` ("dp", "tp" or "pp"), itself among them, by coordinate.
  std::vector<int> group_ranks(std::string_view axis, int rank) const;

  // ---- Along the pipeline -------------------------------------------------------------------------------------------

  bool is_pipeline_head(int rank) const { return coordinates(rank).pp == 0; }
  bool is_pipeline_tail(int rank) const { return coordinates(rank).pp == sizes().pp - 1; }
  /// All ranks of the first stage, ascending.
  std::vector<int> pipeline_heads() const;
  /// All ranks of the last stage, ascending.
  std::vector<int> pipeline_tails() const;
  /// The same dp and tp on the next stage; nothing at the tail.
  std::optional<int> next_pipeline_rank(int rank) const;
  /// The same dp and tp on the stage before; nothing at the head.
  std::optional<int> previous_pipeline_rank(int rank) const;

  // ---- On the machines ----------------------------------------------------------------------------------------------

  int node_of(int rank) const;
  /// The position of `rank` among the ranks of its node.
  int local_rank_of(int rank) const;

 private:
  std::vector<int> stage_ranks(int stage) const;
  std::optional<int> pipeline_neighbour(int rank, int distance) const;

  AxisLayout layout_;
  Topology topology_;
};

/// A stable name for each group that a layout can have: "dp.3" is the fourth line of axis dp, counted by its first
/// rank; "dp+tp.1" the second slice along both. Every rank computes the same names, and nothing is created here: a
/// `DeviceMesh` makes the groups this rank belongs to, under these names, when they are first used.
class ProcessGroupIds {
 public:
  explicit ProcessGroupIds(AxisLayout layout);

  const AxisLayout& layout() const { return layout_; }

  /// Lines of all axes together.
  int num_lines() const;
  /// The names of all lines of an axis, or of all axes: O(ranks), for reports and tests.
  std::vector<std::string> lines_of(const std::string& axis) const;
  std::vector<std::string> all_lines() const;

  /// The line of `axis` through `rank`.
  std::string id_of(const std::string& axis, int rank) const;
  /// The slice along several axes through `rank`. The order in which they are listed does not matter. Along no axis at
  /// all, a rank is alone: "self.5".
  std::string slice_id_of(const std::vector<std::string>& axes, int rank) const;
  /// The lines through `rank`, one for each axis as declared.
  std::vector<std::string> lines_through(int rank) const;

  /// The members of a group, in group order. Throws ConfigError for a name that this layout does not have.
  std::vector<int> ranks_of(const std::string& id) const;

 private:
  AxisLayout layout_;
};

/// The axes of a layout from the one that talks most to the one that talks least, by the names in use: "tp", then "cp"
/// and "ep" (the one declared later first), then "dp", then "pp". An axis of another name is assumed to talk slightly
/// more than the axis declared before it, or least of all when it is declared first. This agrees with the default
/// order.
std::vector<std::string> default_chattiness(const AxisLayout& layout);

/// One warning for each axis that crosses nodes while an axis that talks less lies inside them, with an order of the
/// axes that does better. Nothing when no order does. `chattiness` names all axes, the one that talks most first; empty
/// means `default_chattiness`. Pure arithmetic: O(ranks * axes). Throws ConfigError when `chattiness` is not an
/// arrangement of the axes.
std::vector<std::string> layout_warnings(const AxisLayout& layout, const Topology& topology,
                                         const std::vector<std::string>& chattiness = {});

}  // namespace tessera
