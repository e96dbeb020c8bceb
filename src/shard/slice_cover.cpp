#include <tessera/shard/slice_cover.h>
#include <tessera/shard/slice_runs.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <tuple>

namespace tessera {
namespace {

using Fault = std::optional<CoverFault>;

// At most so many runs are listed one by one, if there is no better way.
constexpr std::int64_t kMostRuns = std::int64_t{1} << 22;

CoverFault overlap(std::size_t one, std::size_t other, std::int64_t element) {
  return {CoverFault::Kind::kOverlap, element, {std::min(one, other), std::max(one, other)}};
}

CoverFault gap(std::int64_t element) { return {CoverFault::Kind::kGap, element, {}}; }

CoverFault too_cut_up() { return {CoverFault::Kind::kTooCutUp, 0, {}}; }

/// Lists every run of every slice, sorts them, and checks whether they follow one another.
Fault fault_of_runs(std::int64_t num_elements, const std::vector<const Slice*>& slices) {
  struct Run {
    std::int64_t begin;
    std::int64_t end;
    std::size_t slice;
  };
  std::vector<Run> all;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const SliceRuns runs(*slices[i]);
    for (std::int64_t r = 0; r < runs.num_runs(); ++r) {
      const SliceRuns::Run run = runs.at(r);
      all.push_back({run.first, run.first + run.length, i});
    }
  }
  std::sort(all.begin(), all.end(), [](const Run& a, const Run& b) {
    return std::tie(a.begin, a.end, a.slice) < std::tie(b.begin, b.end, b.slice);
  });
  std::int64_t end = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].begin > end) return gap(end);
    if (all[i].begin < end) return overlap(all[i - 1].slice, all[i].slice, all[i].begin);
    end = all[i].end;
  }
  if (end != num_elements) return gap(end);
  return std::nullopt;
}

/// Note [Boxes that fill a tensor]
/// Boxes in a tensor of one shape are checked one dimension after another. Between two neighbouring indices at which a
/// box begins or ends, the same boxes are present, and these must fill the remaining dimensions. In grids, which ranks
/// write, every box is visited once in each dimension. A hostile manifest can need far more, so the work is bounded.
class BoxCover {
 public:
  /// `num_ranges`: the index ranges of all slices. Few ranges can describe very many boxes, so these are bounded too.
  BoxCover(const std::vector<std::int64_t>& shape, std::size_t num_ranges)
      : shape_(shape), strides_(shape.size(), 1), most_boxes_(kMostBoxes + kBoxesForEach * num_ranges) {
    for (std::size_t d = shape_.size(); d-- > 1;) strides_[d - 1] = strides_[d] * shape_[d];
  }

  /// Returns false when the slice consists of too many boxes.
  bool add(std::size_t slice, const Slice& added) {
    auto boxes = added.boxes(most_boxes_ - boxes_.size());
    if (!boxes) return false;
    slice_of_.insert(slice_of_.end(), boxes->size(), slice);
    std::ranges::move(*boxes, std::back_inserter(boxes_));
    return true;
  }

  Fault fault() {
    if (boxes_.empty()) return gap(0);
    work_left_ = kWork + kWorkForEach * static_cast<std::int64_t>(boxes_.size());
    std::vector<std::size_t> all(boxes_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return fault(std::move(all), 0, 0);
  }

 private:
  static constexpr std::int64_t kWork = 1'000'000;
  static constexpr std::int64_t kWorkForEach = 256;
  static constexpr std::size_t kMostBoxes = 4096;
  static constexpr std::size_t kBoxesForEach = 64;

  std::int64_t begin(std::size_t box, std::size_t dim) const { return boxes_[box][dim].start; }
  std::int64_t end(std::size_t box, std::size_t dim) const { return boxes_[box][dim].end(); }

  /// The fault in the dimensions from `dim` on; `element` is the first element of the region to fill.
  Fault fault(std::vector<std::size_t> boxes, std::size_t dim, std::int64_t element) {
    if (dim == shape_.size()) {
      if (boxes.size() == 1) return std::nullopt;
      return overlap(slice_of_[boxes[0]], slice_of_[boxes[1]], element);
    }
    std::sort(boxes.begin(), boxes.end(), [&](std::size_t a, std::size_t b) { return begin(a, dim) < begin(b, dim); });
    std::vector<std::int64_t> cuts;
    for (const std::size_t box : boxes) {
      cuts.push_back(begin(box, dim));
      cuts.push_back(end(box, dim));
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    if (cuts.front() != 0) return gap(element);
    std::vector<std::size_t> present;
    std::size_t next = 0;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t cut = cuts[i];
      std::erase_if(present, [&](std::size_t box) { return end(box, dim) <= cut; });
      while (next < boxes.size() && begin(boxes[next], dim) == cut) present.push_back(boxes[next++]);
      work_left_ -= static_cast<std::int64_t>(present.size()) + 1;
      if (work_left_ < 0) return too_cut_up();
      const std::int64_t first = element + cut * strides_[dim];
      if (present.empty()) return gap(first);
      if (auto found = fault(present, dim + 1, first)) return found;
    }
    if (cuts.back() != shape_[dim]) return gap(element + cuts.back() * strides_[dim]);
    return std::nullopt;
  }

  const std::vector<std::int64_t>& shape_;
  std::vector<std::int64_t> strides_;
  std::size_t most_boxes_;
  std::vector<Slice::Box> boxes_;
  std::vector<std::size_t> slice_of_;  // each box
  std::int64_t work_left_ = 0;
};

}  // namespace

std::string CoverFault::text() const {
  switch (kind) {
    case Kind::kGap:
      return "no slice holds element " + std::to_string(element);
    case Kind::kOverlap:
      return "slices " + std::to_string(both[0]) + " and " + std::to_string(both[1]) + " overlap at element " +
             std::to_string(element);
    default:
      return "its slices are cut up so that they cannot be checked in reasonable time";
  }
}

std::optional<CoverFault> cover_fault(std::int64_t num_elements, const std::vector<const Slice*>& slices) {
  if (num_elements == 0) return std::nullopt;
  std::int64_t num_runs = 0;
  std::size_t num_ranges = 0;
  bool same_shape = true;
  const std::vector<std::int64_t>* shape = nullptr;  // of slices that are no extents; extents fit any shape
  for (const Slice* slice : slices) {
    num_runs = std::min(num_runs, kMostRuns) + std::min(SliceRuns(*slice).num_runs(), kMostRuns);
    for (const auto& of_dim : slice->indices()) num_ranges += of_dim.size();
    if (slice->as_extent()) continue;
    if (!shape) shape = &slice->shape();
    same_shape = same_shape && slice->shape() == *shape;
  }
  if (!shape) return fault_of_runs(num_elements, slices);
  if (same_shape) {
    BoxCover cover(*shape, num_ranges);
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const auto extent = slices[i]->as_extent();
      if (!cover.add(i, extent ? Slice::extent(*shape, *extent) : *slices[i])) return too_cut_up();
    }
    return cover.fault();
  }
  if (num_runs <= kMostRuns) return fault_of_runs(num_elements, slices);
  return too_cut_up();
}

}  // namespace tessera
