#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>
#include "mesh/axis_names.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace tessera {
namespace {

using mesh::arrangement_fault;
using mesh::axis_faults;
using mesh::describe;
using mesh::names_of;
using mesh::throw_if_any;

void check_coordinates(const AxisLayout& layout, const std::vector<int>& coordinates) {
  if (coordinates.size() != layout.axes().size()) {
    throw ConfigError(std::to_string(coordinates.size()) + " coordinates were given for the " +
                      std::to_string(layout.num_axes()) + " axes " + describe(layout.axes()) +
                      ": give one for each axis");
  }
  for (std::size_t i = 0; i < coordinates.size(); ++i) {
    const auto& axis = layout.axes()[i];
    if (coordinates[i] < 0 || coordinates[i] >= axis.size) {
      throw ConfigError("coordinate " + std::to_string(coordinates[i]) + " is outside axis " + axis.name +
                        ": use 0 to " + std::to_string(axis.size - 1));
    }
  }
}

void check_number(int number, int count, const char* what) {
  if (number < 0 || number >= count) {
    throw ConfigError("there is no " + std::string(what) + " " + std::to_string(number) + ": use 0 to " +
                      std::to_string(count - 1));
  }
}

}  // namespace

std::vector<int> AxisLine::ranks() const {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    ranks[static_cast<std::size_t>(i)] = rank_at(i);
  }
  return ranks;
}

AxisLayout::AxisLayout(std::vector<AxisSpec> axes, const std::vector<std::string>& order) : axes_(std::move(axes)) {
  auto faults = axis_faults(axes_);
  if (!order.empty()) {
    if (auto fault = arrangement_fault(names_of(axes_), order, "the order"); !fault.empty()) {
      faults.push_back(std::move(fault));
    }
  }
  throw_if_any("The layout " + describe(axes_) + " is not possible:", faults);

  if (order.empty()) {
    slowest_first_.resize(axes_.size());
    std::iota(slowest_first_.begin(), slowest_first_.end(), 0);
  } else {
    slowest_first_ = axis_indices(order);
  }
  strides_.resize(axes_.size());
  for (std::size_t i = slowest_first_.size(); i-- > 0;) {
    const int axis = slowest_first_[i];
    strides_[static_cast<std::size_t>(axis)] = num_ranks_;
    num_ranks_ *= size(axis);
  }
}

std::vector<std::string> AxisLayout::order() const {
  std::vector<std::string> names;
  for (int axis : slowest_first_) {
    names.push_back(name(axis));
  }
  return names;
}

int AxisLayout::axis_index(std::string_view name) const {
  const auto found = std::find_if(axes_.begin(), axes_.end(), [&](const AxisSpec& axis) { return axis.name == name; });
  if (found == axes_.end()) {
    throw ConfigError("there is no axis \"" + std::string(name) + "\": the axes are " + describe(axes_));
  }
  return static_cast<int>(found - axes_.begin());
}

std::vector<int> AxisLayout::axis_indices(const std::vector<std::string>& names) const {
  std::vector<int> indices;
  indices.reserve(names.size());
  for (const auto& name : names) {
    indices.push_back(axis_index(name));
  }
  return indices;
}

int AxisLayout::coordinate(int axis, int rank) const {
  check_rank(rank);
  return rank / stride(axis) % size(axis);
}

std::vector<int> AxisLayout::coordinates(int rank) const {
  std::vector<int> result(axes_.size());
  for (int axis = 0; axis < num_axes(); ++axis) {
    result[static_cast<std::size_t>(axis)] = coordinate(axis, rank);
  }
  return result;
}

int AxisLayout::rank_at(const std::vector<int>& coordinates) const {
  check_coordinates(*this, coordinates);
  return std::inner_product(coordinates.begin(), coordinates.end(), strides_.begin(), 0);
}

AxisLine AxisLayout::line(int axis, int rank) const {
  return {rank - coordinate(axis, rank) * stride(axis), stride(axis), size(axis)};
}

// Note [Line numbers]
// With stride s and size n, rank = high * (n * s) + coordinate * s + low. Dropping the coordinate leaves
// high * s + low, which counts the lines in the order of their first ranks.
int AxisLayout::line_number(int axis, int rank) const {
  check_rank(rank);
  const int s = stride(axis);
  return rank / (s * size(axis)) * s + rank % s;
}

AxisLine AxisLayout::line_at(int axis, int number) const {
  check_number(number, num_lines(axis), "line");
  const int s = stride(axis);
  return {number / s * s * size(axis) + number % s, s, size(axis)};
}

AxisLayout AxisLayout::sub_layout(const std::vector<int>& axes) const {
  std::vector<AxisSpec> kept;
  kept.reserve(axes.size());
  for (int axis : axes) {
    kept.push_back(axes_[checked_axis(axis)]);
  }
  std::vector<std::string> kept_order;
  for (int axis : slowest_first_) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      kept_order.push_back(name(axis));
    }
  }
  return AxisLayout(std::move(kept), kept_order);
}

std::vector<int> AxisLayout::other_axes(const std::vector<int>& axes) const {
  std::vector<int> others;
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) {
      others.push_back(axis);
    }
  }
  return others;
}

AxisSlice AxisLayout::slice(const std::vector<int>& axes, int rank) const { return AxisSlice(*this, axes, rank); }

int AxisLayout::num_slices(const std::vector<int>& axes) const { return num_ranks_ / sub_layout(axes).num_ranks(); }

AxisSlice AxisLayout::slice_at(const std::vector<int>& axes, int number) const {
  check_number(number, num_slices(axes), "slice");
  // Slices of these axes are themselves laid out on the other axes; member 0 lies at the origin of these.
  const auto others = other_axes(axes);
  return slice(axes, slice(others, 0).rank_at(number));
}

std::size_t AxisLayout::checked_axis(int axis) const {
  check_number(axis, num_axes(), "axis");
  return static_cast<std::size_t>(axis);
}

void AxisLayout::check_rank(int rank) const { check_number(rank, num_ranks_, "rank"); }

AxisSlice::AxisSlice(const AxisLayout& parent, const std::vector<int>& axes, int rank)
    : layout_(parent.sub_layout(axes)), start_(rank) {
  for (int axis : axes) {
    strides_.push_back(parent.stride(axis));
    start_ -= parent.coordinate(axis, rank) * parent.stride(axis);
  }
  const auto others = parent.other_axes(axes);
  std::vector<int> fixed;
  fixed.reserve(others.size());
  for (int axis : others) {
    fixed.push_back(parent.coordinate(axis, rank));
  }
  number_ = parent.sub_layout(others).rank_at(fixed);
}

int AxisSlice::rank_at(int index) const { return rank_at(layout_.coordinates(index)); }

int AxisSlice::rank_at(const std::vector<int>& coordinates) const {
  check_coordinates(layout_, coordinates);
  return std::inner_product(coordinates.begin(), coordinates.end(), strides_.begin(), start_);
}

int AxisSlice::index_of(int rank) const {
  if (!contains(rank)) {
    throw ConfigError("rank " + std::to_string(rank) + " is not among the " + std::to_string(size()) +
                      " ranks of the slice " + describe(layout_.axes()) + " that starts at rank " +
                      std::to_string(start_) + ": ask for one of its members");
  }
  return layout_.rank_at(coordinates_of(rank));
}

bool AxisSlice::contains(int rank) const { return rank >= start_ && rank_at(coordinates_of(rank)) == rank; }

std::vector<int> AxisSlice::ranks() const {
  std::vector<int> ranks(static_cast<std::size_t>(size()));
  for (int i = 0; i < size(); ++i) {
    ranks[static_cast<std::size_t>(i)] = rank_at(i);
  }
  return ranks;
}

std::vector<int> AxisSlice::coordinates_of(int rank) const {
  std::vector<int> coordinates(strides_.size());
  for (std::size_t i = 0; i < coordinates.size(); ++i) {
    coordinates[i] = rank / strides_[i] % layout_.axes()[i].size;
  }
  return coordinates;
}

}  // namespace tessera
