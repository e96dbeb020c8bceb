#pragma once

#include <tessera/mesh/axis_layout.h>

#include <string>
#include <vector>

namespace tessera {

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

}  // namespace tessera
