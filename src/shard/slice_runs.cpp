#include <tessera/shard/slice_runs.h>

#include <algorithm>
#include <utility>

namespace tessera {

SliceRuns::SliceRuns(const Slice& slice) : range_(slice.range()) {
  if (range_.size == 0) return;
  // From the innermost dimension outwards, a run grows until a dimension is not taken whole.
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
