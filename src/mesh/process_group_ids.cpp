#include <tessera/core/error.h>
#include <tessera/mesh/process_group_ids.h>
#include "mesh/axis_names.h"

#include <algorithm>
#include <charconv>

namespace tessera {
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

}  // namespace tessera
