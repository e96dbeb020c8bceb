#include <tessera/core/error.h>
#include <tessera/shard/slice.h>
#include <tessera/shard/slice_runs.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

using Ranges = std::vector<Range>;

constexpr std::size_t kMostShown = 16;

std::string list_text(const std::vector<std::int64_t>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(numbers.size(), kMostShown); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
  }
  return text + (numbers.size() > kMostShown ? ", ...]" : "]");
}

std::int64_t total(const Ranges& ranges) {
  std::int64_t sum = 0;
  for (const Range& range : ranges) sum += range.size;
  return sum;
}

std::vector<std::int64_t> sizes_of(const std::vector<Ranges>& indices) {
  std::vector<std::int64_t> sizes;
  for (const Ranges& of_dim : indices) sizes.push_back(total(of_dim));
  return sizes;
}

/// The tensor's index of the selected index `number`.
std::int64_t index_at(const Ranges& ranges, std::int64_t number) {
  std::size_t i = 0;
  while (number >= ranges[i].size) number -= ranges[i++].size;
  return ranges[i].start + number;
}

/// The tensor's indices of the `wanted` ones among the selected; neighbours become one range.
Ranges taken(const Ranges& selected, const Ranges& wanted) {
  Ranges found;
  for (const Range& range : wanted) {
    std::int64_t begin = 0;  // of the next selected range, among the selected indices
    for (const Range& of_tensor : selected) {
      const Range common = Range{begin, of_tensor.size}.meet(range);
      const std::int64_t start = of_tensor.start + common.start - begin;
      begin += of_tensor.size;
      if (common.size == 0) continue;
      if (!found.empty() && found.back().end() == start) {
        found.back().size += common.size;
      } else {
        found.push_back({start, common.size});
      }
    }
  }
  return found;
}

bool ascends_within(const Ranges& ranges, std::int64_t size) {
  std::int64_t end = 0;
  for (const Range& range : ranges) {
    if (range.start < end || range.size < 0 || range.size > size || range.start > size - range.size) return false;
    end = range.end();
  }
  return true;
}

std::string ranges_text(const Ranges& ranges) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranges.size(), kMostShown); ++i) {
    std::int64_t end = 0;  // may overflow for a range that is being refused
    if (__builtin_add_overflow(ranges[i].start, ranges[i].size, &end)) end = INT64_MAX;
    text += (i > 0 ? "+" : "") + std::to_string(ranges[i].start) + ":" + std::to_string(end);
  }
  if (ranges.empty()) return "none";
  return text + (ranges.size() > kMostShown ? "+..." : "");
}

/// Splits a range of selected elements into boxes.
class BoxList {
 public:
  BoxList(const Slice& slice, std::size_t most)
      : slice_(slice), most_(most), prefix_(slice.shape().size()), rows_(slice.shape().size(), 1) {
    const std::vector<std::int64_t> sizes = slice.selected_shape();
    for (std::size_t d = sizes.size(); d-- > 1;) rows_[d - 1] = rows_[d] * sizes[d];
  }

  /// False when there are too many.
  bool add_all() { return slice_.num_elements() == 0 || add(0, slice_.range()); }
  std::vector<Slice::Box> take() { return std::move(boxes_); }

 private:
  /// Adds a range of the elements that remain when the dimensions before `dim` are fixed.
  bool add(std::size_t dim, Range range) {
    if (dim == rows_.size()) return add_product(dim);
    const std::int64_t row = rows_[dim];
    std::int64_t first = range.start / row;
    std::int64_t last = (range.end() - 1) / row;
    const std::int64_t skipped = range.start % row;
    const std::int64_t missing = row - 1 - (range.end() - 1) % row;
    if (first == last && (skipped > 0 || missing > 0)) return add_row(dim, first, {skipped, range.size});
    if (skipped > 0 && !add_row(dim, first++, {skipped, row - skipped})) return false;
    if (missing > 0 && !add_row(dim, last--, {0, row - missing})) return false;
    if (first > last) return true;
    prefix_[dim] = taken(slice_.indices()[dim], {{first, last - first + 1}});
    return add_product(dim + 1);
  }

  bool add_row(std::size_t dim, std::int64_t number, Range range) {
    prefix_[dim] = {{index_at(slice_.indices()[dim], number), 1}};
    return add(dim + 1, range);
  }

  /// Adds all elements of the dimensions from `dim` on.
  bool add_product(std::size_t dim) {
    std::size_t count = 1;
    for (std::size_t d = 0; d < prefix_.size(); ++d) {
      if (d >= dim) prefix_[d] = slice_.indices()[d];
      if (prefix_[d].size() > most_ / count) return false;
      count *= prefix_[d].size();
    }
    if (boxes_.size() > most_ - count) return false;
    for (std::size_t number = 0; number < count; ++number) {
      Slice::Box& box = boxes_.emplace_back();
      std::size_t rest = number;
      for (const Ranges& ranges : prefix_) {
        box.push_back(ranges[rest % ranges.size()]);
        rest /= ranges.size();
      }
    }
    return true;
  }

  const Slice& slice_;
  std::size_t most_;
  std::vector<Ranges> prefix_;
  std::vector<std::int64_t> rows_;  // elements for each index, in each dimension
  std::vector<Slice::Box> boxes_;
};

}  // namespace

std::int64_t num_elements_of(const std::vector<std::int64_t>& shape) {
  const auto refuse = [&] {
    throw ConfigError("the shape " + list_text(shape) + " has more elements than can be counted");
  };
  if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 0; })) refuse();
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) refuse();
  }
  return count;
}

Slice Slice::whole(std::vector<std::int64_t> shape) {
  Slice slice;
  slice.range_ = {0, num_elements_of(shape)};
  for (const std::int64_t size : shape) slice.indices_.push_back(size > 0 ? Ranges{{0, size}} : Ranges{});
  slice.shape_ = std::move(shape);
  return slice;
}

Slice Slice::box(std::vector<std::int64_t> shape, const std::vector<std::int64_t>& starts,
                 const std::vector<std::int64_t>& sizes) {
  Slice slice = whole(std::move(shape));
  bool inside = starts.size() == slice.shape_.size() && sizes.size() == slice.shape_.size();
  for (std::size_t d = 0; inside && d < sizes.size(); ++d) {
    inside = ascends_within({{starts[d], sizes[d]}}, slice.shape_[d]);
    if (inside) slice.indices_[d] = taken(slice.indices_[d], {{starts[d], sizes[d]}});
  }
  if (!inside) {
    throw ConfigError("a slice that starts at " + list_text(starts) + " with sizes " + list_text(sizes) +
                      " is not inside the shape " + list_text(slice.shape_));
  }
  slice.range_ = {0, num_elements_of(sizes)};
  return slice;
}

Slice Slice::extent(std::vector<std::int64_t> shape, Range elements) { return whole(std::move(shape)).part(elements); }

Slice Slice::select(std::size_t dim, const std::vector<Range>& indices) const {
  if (!takes_all_selected() || dim >= shape_.size()) {
    throw ConfigError("no indices of dimension " + std::to_string(dim) + " can be taken of " + text());
  }
  if (!ascends_within(indices, total(indices_[dim]))) {
    throw ConfigError("the indices " + ranges_text(indices) + " do not ascend within dimension " + std::to_string(dim) +
                      " of " + text());
  }
  Slice slice = *this;
  slice.indices_[dim] = taken(indices_[dim], indices);
  slice.range_ = {0, num_elements_of(slice.selected_shape())};
  return slice;
}

Slice Slice::part(Range elements) const {
  if (!ascends_within({elements}, range_.size)) {
    throw ConfigError("the elements " + ranges_text({elements}) + " do not lie in " + text() + ", which has " +
                      std::to_string(range_.size));
  }
  Slice slice = *this;
  slice.range_ = {range_.start + elements.start, elements.size};
  return slice;
}

Slice Slice::then(const Slice& inner) const {
  if (takes_all_selected() && inner.shape_ == selected_shape()) {
    Slice slice = *this;
    for (std::size_t d = 0; d < shape_.size(); ++d) slice = slice.select(d, inner.indices_[d]);
    return slice.part(inner.range_);
  }
  const auto extent = inner.as_extent();
  if (!extent || inner.num_tensor_elements() != range_.size) {
    throw ConfigError(inner.text() + " cannot be taken of " + text());
  }
  return part(*extent);
}

std::vector<std::int64_t> Slice::selected_shape() const { return sizes_of(indices_); }

std::int64_t Slice::num_tensor_elements() const { return num_elements_of(shape_); }

bool Slice::takes_all_selected() const { return range_.size == num_elements_of(selected_shape()); }

std::optional<Range> Slice::as_extent() const {
  if (range_.size == 0) return Range{0, 0};
  const auto place_of = [this](std::int64_t element) {
    std::int64_t place = 0;
    std::int64_t stride = 1;
    for (std::size_t d = shape_.size(); d-- > 0;) {
      const std::int64_t size = total(indices_[d]);
      place += index_at(indices_[d], element % size) * stride;
      element /= size;
      stride *= shape_[d];
    }
    return place;
  };
  // The elements ascend, so they are one extent if the first and the last are as far apart as their number.
  const std::int64_t first = place_of(range_.start);
  if (place_of(range_.end() - 1) - first + 1 != range_.size) return std::nullopt;
  return Range{first, range_.size};
}

Slice Slice::canonical() const {
  if (const auto range = as_extent()) return extent(shape_, *range);
  Slice slice = *this;
  std::int64_t row = num_elements_of(selected_shape());
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    row /= total(slice.indices_[d]);
    const std::int64_t first = slice.range_.start / row;
    const std::int64_t last = (slice.range_.end() - 1) / row;
    slice.indices_[d] = taken(slice.indices_[d], {{first, last - first + 1}});
    slice.range_.start -= first * row;
    if (first != last) break;
  }
  return slice;
}

std::optional<std::vector<Slice::Box>> Slice::boxes(std::size_t most) const {
  BoxList list(*this, most);
  if (!list.add_all()) return std::nullopt;
  return list.take();
}

std::string Slice::text() const {
  if (is_whole()) return "all of " + list_text(shape_);
  const auto elements = [this] { return "elements " + ranges_text({range_}) + " of "; };
  std::string indices;
  for (const Ranges& ranges : indices_) indices += (indices.empty() ? "[" : ", ") + ranges_text(ranges);
  if (num_elements_of(selected_shape()) == num_tensor_elements()) return elements() + list_text(shape_);
  return (takes_all_selected() ? "" : elements()) + indices + "] of " + list_text(shape_);
}

SliceRuns::SliceRuns(const Slice& slice) : range_(slice.range()) {
  if (range_.size == 0) return;
  // From the innermost dimension outwards, runs grow until a dimension is not taken whole.
  std::int64_t stride = 1;
  std::size_t dim = slice.shape().size();
  const auto is_whole = [&](std::size_t d) {
    return slice.indices()[d].size() == 1 && slice.indices()[d][0].size == slice.shape()[d];
  };
  while (dim > 0 && is_whole(dim - 1)) stride *= slice.shape()[--dim];
  if (dim == 0) {
    pieces_ = {{0, 0, stride}};
    row_length_ = stride;
  } else {
    row_length_ = 0;
    for (const Range& range : slice.indices()[--dim]) {
      pieces_.push_back({row_length_, range.start * stride, range.size * stride});
      row_length_ += range.size * stride;
    }
    stride *= slice.shape()[dim];
  }
  while (dim-- > 0) {
    Dim outer{slice.indices()[dim], 0, stride};
    for (const Range& range : outer.indices) outer.size += range.size;
    outer_.insert(outer_.begin(), std::move(outer));
    stride *= slice.shape()[dim];
  }
  first_run_ = run_in_selected(range_.start);
  num_runs_ = run_in_selected(range_.end() - 1) - first_run_ + 1;
}

std::int64_t SliceRuns::run_in_selected(std::int64_t element) const {
  const std::int64_t in_row = element % row_length_;
  const auto behind = std::upper_bound(pieces_.begin(), pieces_.end(), in_row,
                                       [](std::int64_t place, const Piece& piece) { return place < piece.begin; });
  return element / row_length_ * static_cast<std::int64_t>(pieces_.size()) + (behind - pieces_.begin() - 1);
}

SliceRuns::Run SliceRuns::at(std::int64_t run) const {
  const auto num_pieces = static_cast<std::int64_t>(pieces_.size());
  std::int64_t row = (first_run_ + run) / num_pieces;
  const Piece& piece = pieces_[static_cast<std::size_t>((first_run_ + run) % num_pieces)];
  const Range selected{row * row_length_ + piece.begin, piece.length};
  std::int64_t first = piece.first;
  for (std::size_t d = outer_.size(); d-- > 0;) {
    std::int64_t number = row % outer_[d].size;
    row /= outer_[d].size;
    std::size_t i = 0;
    while (number >= outer_[d].indices[i].size) number -= outer_[d].indices[i++].size;
    first += (outer_[d].indices[i].start + number) * outer_[d].stride;
  }
  const Range held = selected.meet(range_);
  return {first + held.start - selected.start, held.start - range_.start, held.size};
}

}  // namespace tessera
