#include "checkpoint/slice_members.h"

#include <tessera/core/error.h>

#include "checkpoint/safetensors_header.h"

namespace tessera::checkpoints {
namespace {

/// The ranges of all dimensions, one dimension after another.
std::vector<std::vector<Range>> ranges_of(const SliceMembers& members) {
  bool fits = members.ranges.size() == members.view.size() && members.starts.size() == members.sizes.size() &&
              members.sizes.size() <= SliceMembers::kMostRanges;
  std::size_t count = 0;
  for (const std::int64_t number : members.ranges) {
    fits = fits && number >= 0 && static_cast<std::size_t>(number) <= members.sizes.size() - count;
    if (fits) count += static_cast<std::size_t>(number);
  }
  if (!fits || count != members.sizes.size()) {
    throw ConfigError("the ranges " + shape_text(members.ranges) + " do not tell of which of " +
                      std::to_string(members.view.size()) + " dimensions " + std::to_string(members.starts.size()) +
                      " starts and " + std::to_string(members.sizes.size()) + " sizes are");
  }
  std::vector<std::vector<Range>> ranges;
  count = 0;
  for (const std::int64_t number : members.ranges) {
    auto& of_dim = ranges.emplace_back();
    for (const std::size_t end = count + static_cast<std::size_t>(number); count < end; ++count) {
      of_dim.push_back({members.starts[count], members.sizes[count]});
    }
  }
  return ranges;
}

Slice selected(const SliceMembers& members) {
  if (members.ranges.empty()) return Slice::box(members.view, members.starts, members.sizes);
  const auto ranges = ranges_of(members);
  Slice slice = Slice::whole(members.view);
  for (std::size_t d = 0; d < ranges.size(); ++d) slice = slice.select(d, ranges[d]);
  return slice;
}

}  // namespace

SliceMembers members_of(const Slice& slice) {
  if (const auto stretch = slice.as_stretch()) {
    return {{slice.num_tensor_elements()}, {stretch->start}, {stretch->size}, {}, {}};
  }
  SliceMembers members;
  members.view = slice.shape();
  for (const auto& of_dim : slice.indices()) {
    members.ranges.push_back(static_cast<std::int64_t>(of_dim.size()));
    for (const Range& range : of_dim) {
      members.starts.push_back(range.start);
      members.sizes.push_back(range.size);
    }
  }
  if (members.sizes.size() > SliceMembers::kMostRanges) {
    throw ConfigError("a slice consists of " + std::to_string(members.sizes.size()) + " ranges of indices; at most " +
                      std::to_string(SliceMembers::kMostRanges) + " can be saved");
  }
  if (members.ranges == std::vector<std::int64_t>(members.view.size(), 1)) members.ranges.clear();
  if (!slice.takes_all_selected()) members.part = {slice.range().start, slice.range().size};
  return members;
}

Slice slice_of(const SliceMembers& members, const std::vector<std::int64_t>& shape) {
  if (num_elements_of(members.view) != num_elements_of(shape)) {
    throw ConfigError("the view " + shape_text(members.view) + " has another number of elements than the shape " +
                      shape_text(shape));
  }
  Slice slice = selected(members);
  if (!members.part.empty()) {
    if (members.part.size() != 2) {
      throw ConfigError("expected an element and a number of them as part, found " + shape_text(members.part));
    }
    slice = slice.part({members.part[0], members.part[1]});
  }
  const auto stretch = slice.as_stretch();  // of the tensor, however it is seen
  return stretch ? Slice::stretch(shape, *stretch) : slice;
}

}  // namespace tessera::checkpoints
