#include "checkpoint/slice_cover.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "checkpoint/slice_runs.h"

namespace tessera::checkpoints {
namespace {

using Fault = std::optional<CoverFault>;

// So many runs are listed one by one, when nothing better is possible.
constexpr std::int64_t kMostRuns = std::int64_t{1} << 22;

CoverFault overlap(std::size_t one, std::size_t other, std::int64_t element) {
  return {CoverFault::Kind::kOverlap, element, {std::min(one, other), std::max(one, other)}};
}

CoverFault gap(std::int64_t element) { return {CoverFault::Kind::kGap, element, {}}; }

CoverFault too_cut_up() { return {CoverFault::Kind::kTooCutUp, 0, {}}; }

/// Lists every run of every place, sorts them, and looks whether they follow one another.
Fault fault_of_runs(std::int64_t num_elements, const std::vector<const SlicePlace*>& places) {
  struct Run {
    std::int64_t begin;
    std::int64_t end;
    std::size_t slice;
  };
  std::vector<Run> all;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const SliceRuns runs(*places[i], "");
    runs.for_each([&](std::int64_t first) { all.push_back({first, first + runs.run_length(), i}); });
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
/// Boxes of one view are looked at one dimension after another: between two neighbouring coordinates at which a box
/// begins or ends, the same boxes are present, and those must fill the remaining dimensions. For grids, which is what
/// ranks write, every box is seen once in each dimension. A hostile manifest can ask for far more, so the work is
/// bounded.
class BoxCover {
 public:
  explicit BoxCover(const std::vector<const SlicePlace*>& places)
      : places_(places), view_(places[0]->view), strides_(view_.size(), 1) {
    for (std::size_t d = view_.size(); d-- > 1;) strides_[d - 1] = strides_[d] * view_[d];
    work_left_ = kWork + kWorkForEach * static_cast<std::int64_t>(places.size());
  }

  Fault fault() {
    std::vector<std::size_t> boxes;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (places_[i]->num_elements() > 0) boxes.push_back(i);
    }
    if (boxes.empty()) return gap(0);
    return fault(std::move(boxes), 0, 0);
  }

 private:
  static constexpr std::int64_t kWork = 1'000'000;
  static constexpr std::int64_t kWorkForEach = 64;

  std::int64_t begin(std::size_t box, std::size_t dim) const { return places_[box]->starts[dim]; }
  std::int64_t end(std::size_t box, std::size_t dim) const { return begin(box, dim) + places_[box]->sizes[dim]; }

  /// Of the dimensions from `dim` on; `element` is the first one of what is being filled.
  Fault fault(std::vector<std::size_t> boxes, std::size_t dim, std::int64_t element) {
    if (dim == view_.size()) {
      if (boxes.size() == 1) return std::nullopt;
      return overlap(boxes[0], boxes[1], element);
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
    if (cuts.back() != view_[dim]) return gap(element + cuts.back() * strides_[dim]);
    return std::nullopt;
  }

  const std::vector<const SlicePlace*>& places_;
  const std::vector<std::int64_t>& view_;
  std::vector<std::int64_t> strides_;
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

std::optional<CoverFault> cover_fault(std::int64_t num_elements, const std::vector<const SlicePlace*>& places) {
  if (num_elements == 0) return std::nullopt;
  std::int64_t num_runs = 0;
  bool same_view = true;
  for (const SlicePlace* place : places) {
    const SliceRuns runs(*place, "");
    num_runs = std::min(num_runs, kMostRuns) + std::min(runs.num_runs(), kMostRuns);
    same_view = same_view && place->view == places[0]->view;
  }
  if (num_runs <= static_cast<std::int64_t>(places.size())) return fault_of_runs(num_elements, places);
  if (same_view) return BoxCover(places).fault();
  if (num_runs <= kMostRuns) return fault_of_runs(num_elements, places);
  return too_cut_up();
}

}  // namespace tessera::checkpoints
