#include "tessera/checkpoint/slice_text.h"

#include <algorithm>
#include <set>

#include "tessera/checkpoint/printed.h"

namespace tessera::app {
namespace {

/// "ranks 0-3, 5"
std::string ranks_text(const std::set<int>& ranks) {
  std::string text;
  for (auto rank = ranks.begin(); rank != ranks.end();) {
    const int first = *rank;
    int last = first;
    for (++rank; rank != ranks.end() && *rank == last + 1; ++rank) last = *rank;
    text += (text.empty() ? "" : ", ") + std::to_string(first) + (last == first ? "" : "-" + std::to_string(last));
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

bool is_box(const Slice& slice) {
  return slice.takes_all_selected() &&
         std::ranges::all_of(slice.indices(), [](const auto& of_dim) { return of_dim.size() == 1; });
}

/// If boxes of one shape form a grid, how many there are in each dimension; else empty.
std::vector<std::size_t> grid_of(const std::vector<const ManifestSlice*>& slices) {
  std::vector<std::size_t> parts;
  std::size_t product = 1;
  for (std::size_t d = 0; d < slices[0]->slice.shape().size(); ++d) {
    std::set<std::int64_t> starts;
    for (const ManifestSlice* slice : slices) starts.insert(slice->slice.indices()[d][0].start);
    parts.push_back(starts.size());
    product *= starts.size();
  }
  if (product != slices.size()) parts.clear();
  return parts;
}

std::string cut_text(const ManifestTensor& tensor, const std::vector<const ManifestSlice*>& slices, bool one_each) {
  const auto all = [&](auto condition) { return std::all_of(slices.begin(), slices.end(), condition); };
  if (all([](const ManifestSlice* slice) { return slice->slice.as_extent().has_value(); })) {
    return one_each ? "an extent each" : std::to_string(slices.size()) + " extents";
  }
  const auto parts =
      all([&](const ManifestSlice* slice) { return slice->slice.shape() == tensor.shape && is_box(slice->slice); })
          ? grid_of(slices)
          : std::vector<std::size_t>();
  if (parts.empty()) return std::to_string(slices.size()) + " slices";
  const auto is_cut = [](std::size_t count) { return count > 1; };
  const auto cut = std::find_if(parts.begin(), parts.end(), is_cut);
  if (std::count_if(parts.begin(), parts.end(), is_cut) == 1) {
    return "split in dim " + std::to_string(cut - parts.begin());
  }
  std::string text;
  for (const std::size_t count : parts) text += (text.empty() ? "" : " x ") + std::to_string(count);
  return "a grid of " + text;
}

}  // namespace

std::string list_text(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

std::string layout_text(const ManifestTensor& tensor) {
  std::vector<const ManifestSlice*> slices;
  std::set<int> ranks;
  for (const ManifestSlice& slice : tensor.slices) {
    if (slice.checksums.empty()) continue;
    slices.push_back(&slice);
    ranks.insert(slice.rank);
  }
  if (slices.empty()) return "-";
  if (slices.size() == 1) return ranks_text(ranks);
  return ranks_text(ranks) + ", " + cut_text(tensor, slices, ranks.size() == slices.size());
}

std::string slice_text(const ManifestSlice& slice) {
  return "rank " + std::to_string(slice.rank) + ": " + slice.slice.text();
}

}  // namespace tessera::app
