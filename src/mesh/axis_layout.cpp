#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <numeric>
#include <string>

#include "mesh/axis_names.h"

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

namespace {

using mesh::describe;

// The order of declaration, which the coordinates of the layout follow.
constexpr int kDp = 0;
constexpr int kTp = 1;
constexpr int kPp = 2;

}  // namespace

RankMapping::RankMapping(const ThreeDSizes& sizes, Topology topology, const std::vector<std::string>& order)
    : layout_({{"dp", sizes.dp}, {"tp", sizes.tp}, {"pp", sizes.pp}}, order), topology_(std::move(topology)) {
  if (topology_.num_ranks() != layout_.num_ranks()) {
    throw ConfigError("the layout " + describe(layout_.axes()) + " has " + std::to_string(layout_.num_ranks()) +
                      " ranks but the topology has " + std::to_string(topology_.num_ranks()) +
                      ": make the product of the sizes equal the number of ranks that the launcher started");
  }
}

ThreeDSizes RankMapping::sizes() const { return {layout_.size(kDp), layout_.size(kTp), layout_.size(kPp)}; }

ThreeDCoordinates RankMapping::coordinates(int rank) const {
  return {layout_.coordinate(kDp, rank), layout_.coordinate(kTp, rank), layout_.coordinate(kPp, rank)};
}

int RankMapping::rank_at(const ThreeDCoordinates& coordinates) const {
  return layout_.rank_at({coordinates.dp, coordinates.tp, coordinates.pp});
}

std::vector<int> RankMapping::group_ranks(std::string_view axis, int rank) const {
  return layout_.line(layout_.axis_index(axis), rank).ranks();
}

std::vector<int> RankMapping::pipeline_heads() const { return stage_ranks(0); }

std::vector<int> RankMapping::pipeline_tails() const { return stage_ranks(sizes().pp - 1); }

std::optional<int> RankMapping::next_pipeline_rank(int rank) const { return pipeline_neighbour(rank, 1); }

std::optional<int> RankMapping::previous_pipeline_rank(int rank) const { return pipeline_neighbour(rank, -1); }

int RankMapping::node_of(int rank) const {
  layout_.check_rank(rank);
  return topology_.node_of(rank);
}

int RankMapping::local_rank_of(int rank) const {
  layout_.check_rank(rank);
  return topology_.local_rank_of(rank);
}

std::vector<int> RankMapping::stage_ranks(int stage) const {
  return layout_.slice({kDp, kTp}, layout_.line(kPp, 0).rank_at(stage)).ranks();
}

std::optional<int> RankMapping::pipeline_neighbour(int rank, int distance) const {
  const int stage = layout_.coordinate(kPp, rank) + distance;
  if (stage < 0 || stage >= layout_.size(kPp)) {
    return std::nullopt;
  }
  return layout_.line(kPp, rank).rank_at(stage);
}

namespace {

using mesh::join;
using mesh::names_of;

// No axis may have this name.
constexpr const char* kAlone = "self";

std::string make_id(const std::string& prefix, int number) { return prefix + "." + std::to_string(number); }

std::vector<std::string> split_names(const std::string& prefix) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  for (std::size_t end = prefix.find('+'); end != std::string::npos; end = prefix.find('+', begin)) {
    names.push_back(prefix.substr(begin, end - begin));
    begin = end + 1;
  }
  names.push_back(prefix.substr(begin));
  return names;
}

}  // namespace

ProcessGroupIds::ProcessGroupIds(AxisLayout layout) : layout_(std::move(layout)) {}

int ProcessGroupIds::num_lines() const {
  int total = 0;
  for (int axis = 0; axis < layout_.num_axes(); ++axis) {
    total += layout_.num_lines(axis);
  }
  return total;
}

std::vector<std::string> ProcessGroupIds::lines_of(const std::string& axis) const {
  std::vector<std::string> ids;
  const int count = layout_.num_lines(layout_.axis_index(axis));
  ids.reserve(static_cast<std::size_t>(count));
  for (int number = 0; number < count; ++number) {
    ids.push_back(make_id(axis, number));
  }
  return ids;
}

std::vector<std::string> ProcessGroupIds::all_lines() const {
  std::vector<std::string> ids;
  for (const auto& axis : layout_.axes()) {
    const auto lines = lines_of(axis.name);
    ids.insert(ids.end(), lines.begin(), lines.end());
  }
  return ids;
}

std::string ProcessGroupIds::id_of(const std::string& axis, int rank) const {
  return make_id(axis, layout_.line_number(layout_.axis_index(axis), rank));
}

std::string ProcessGroupIds::slice_id_of(const std::vector<std::string>& axes, int rank) const {
  // As declared, so that all members agree however the caller listed them.
  auto indices = layout_.axis_indices(axes);
  std::sort(indices.begin(), indices.end());
  const auto slice = layout_.slice(indices, rank);
  return make_id(axes.empty() ? kAlone : join(names_of(slice.layout().axes()), "+"), slice.number());
}

std::vector<std::string> ProcessGroupIds::lines_through(int rank) const {
  std::vector<std::string> ids;
  for (const auto& axis : layout_.axes()) {
    ids.push_back(id_of(axis.name, rank));
  }
  return ids;
}

std::vector<int> ProcessGroupIds::ranks_of(const std::string& id) const {
  const auto dot = id.rfind('.');
  int number = -1;
  if (dot != std::string::npos) {
    const char* end = id.data() + id.size();
    const auto parsed = std::from_chars(id.data() + dot + 1, end, number);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      number = -1;
    }
  }
  if (number < 0) {
    throw ConfigError("\"" + id + "\" is no group name: write an axis, a dot and a number, as in \"dp.0\"");
  }
  const std::string prefix = id.substr(0, dot);
  const auto names = prefix == kAlone ? std::vector<std::string>{} : split_names(prefix);
  return layout_.slice_at(layout_.axis_indices(names), number).ranks();
}

namespace {

using mesh::arrangement_fault;
using mesh::join;
using mesh::names_of;

/// An axis that crosses nodes, and the axes inside them that talk less.
struct Conflict {
  std::string crossing;
  std::vector<std::string> inside;
};

int talk_of(const std::string& name) {
  constexpr std::pair<const char*, int> kKnown[] = {{"tp", 4}, {"cp", 3}, {"ep", 3}, {"dp", 2}, {"pp", 1}};
  const auto found = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const auto& k) { return name == k.first; });
  return found == std::end(kKnown) ? 0 : found->second;
}

std::vector<std::string> reversed(const std::vector<std::string>& names) { return {names.rbegin(), names.rend()}; }

bool crosses_nodes(const AxisLayout& layout, int axis, const Topology& topology) {
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    if (!topology.same_node(rank, layout.line(axis, rank).start)) {
      return true;
    }
  }
  return false;
}

std::vector<Conflict> conflicts_of(const AxisLayout& layout, const Topology& topology,
                                   const std::vector<std::string>& chattiness) {
  std::vector<Conflict> conflicts;
  std::vector<std::string> inside;  // axes inside nodes that talk less than the present one
  for (const auto& name : reversed(chattiness)) {
    const int axis = layout.axis_index(name);
    if (layout.size(axis) == 1) {
      continue;  // it does not communicate
    }
    if (!crosses_nodes(layout, axis, topology)) {
      inside.push_back(name);
    } else if (!inside.empty()) {
      conflicts.push_back({name, inside});
    }
  }
  return conflicts;
}

std::size_t num_pairs(const std::vector<Conflict>& conflicts) {
  std::size_t pairs = 0;
  for (const auto& conflict : conflicts) {
    pairs += conflict.inside.size();
  }
  return pairs;
}

/// Empty when neither of the two sensible orders beats `num_now` pairs. Two, because node-by-node placement of ranks
/// wants the chattiest axis fastest, and round-robin placement wants it slowest.
std::vector<std::string> better_order(const AxisLayout& layout, const Topology& topology,
                                      const std::vector<std::string>& chattiness, std::size_t num_now) {
  std::vector<std::string> best;
  for (const auto& order : {reversed(chattiness), chattiness}) {
    const auto pairs = num_pairs(conflicts_of(AxisLayout(layout.axes(), order), topology, chattiness));
    if (pairs < num_now) {
      best = order;
      num_now = pairs;
    }
  }
  return best;
}

}  // namespace

std::vector<std::string> default_chattiness(const AxisLayout& layout) {
  auto names = names_of(layout.axes());
  std::vector<std::string> known;
  std::copy_if(names.begin(), names.end(), std::back_inserter(known), talk_of);
  // Of two equals (cp and ep), the one declared later comes first.
  std::reverse(known.begin(), known.end());
  std::stable_sort(known.begin(), known.end(), [](const auto& a, const auto& b) { return talk_of(a) > talk_of(b); });
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (talk_of(names[i]) == 0) {
      known.insert(i == 0 ? known.end() : std::find(known.begin(), known.end(), names[i - 1]), names[i]);
    }
  }
  return known;
}

std::vector<std::string> layout_warnings(const AxisLayout& layout, const Topology& topology,
                                         const std::vector<std::string>& chattiness) {
  const auto ranking = chattiness.empty() ? default_chattiness(layout) : chattiness;
  if (auto fault = arrangement_fault(names_of(layout.axes()), ranking, "the chattiness"); !fault.empty()) {
    throw ConfigError(fault);
  }
  const auto conflicts = conflicts_of(layout, topology, ranking);
  if (conflicts.empty()) {
    return {};
  }
  const auto better = better_order(layout, topology, ranking, num_pairs(conflicts));
  std::vector<std::string> warnings;
  for (auto conflict = conflicts.rbegin(); conflict != conflicts.rend() && !better.empty(); ++conflict) {
    warnings.push_back("axis " + conflict->crossing + " crosses nodes while " + join(conflict->inside, " and ") +
                       ", which talks less, lies inside them: the order {" + join(better, ", ") +
                       "} (slowest first) gives the inside of nodes to the axes that talk most; now it is {" +
                       join(layout.order(), ", ") + "}");
  }
  return warnings;
}

}  // namespace tessera
