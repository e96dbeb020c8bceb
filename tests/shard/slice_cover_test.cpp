#include <tessera/shard/slice_cover.h>

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tessera {
namespace {

/// A box, to be moved about.
struct Place {
  std::vector<std::int64_t> view;
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> sizes;
};

std::string fault_of(std::int64_t num_elements, const std::vector<Slice>& slices) {
  std::vector<const Slice*> pointers;
  for (const Slice& slice : slices) pointers.push_back(&slice);
  const auto fault = cover_fault(num_elements, pointers);
  return fault ? fault->text() : "";
}

std::string fault_of(std::int64_t num_elements, const std::vector<Place>& places) {
  std::vector<Slice> slices;
  for (const Place& place : places) slices.push_back(Slice::box(place.view, place.starts, place.sizes));
  return fault_of(num_elements, slices);
}

Place box(const std::vector<std::int64_t>& view, const std::vector<std::int64_t>& starts,
          const std::vector<std::int64_t>& sizes) {
  return {view, starts, sizes};
}

/// A grid of boxes: in each dimension so many, of a size each.
std::vector<Place> grid(const std::vector<std::int64_t>& parts, std::int64_t size) {
  std::vector<std::int64_t> view;
  for (const std::int64_t part : parts) view.push_back(part * size);
  std::vector<Place> places;
  std::vector<std::int64_t> index(parts.size(), 0);
  while (true) {
    Place place{view, {}, std::vector<std::int64_t>(parts.size(), size)};
    for (const std::int64_t i : index) place.starts.push_back(i * size);
    places.push_back(place);
    std::size_t d = parts.size();
    for (; d > 0; --d) {
      if (++index[d - 1] < parts[d - 1]) break;
      index[d - 1] = 0;
    }
    if (d == 0) return places;
  }
}

TEST(SliceCover, AcceptsStretchesInAnyOrder) {
  EXPECT_EQ(fault_of(10, {box({10}, {6}, {4}), box({10}, {0}, {6}), box({10}, {3}, {0})}), "");
  EXPECT_EQ(fault_of(1, std::vector<Place>{{}}), "");
  EXPECT_EQ(fault_of(0, std::vector<Place>()), "");
}

TEST(SliceCover, AcceptsViewsOfDifferentShapes) {
  EXPECT_EQ(fault_of(24, {box({6, 4}, {0, 0}, {3, 2}), box({3, 2, 4}, {0, 0, 2}, {1, 2, 2}),
                          box({12, 2}, {5, 0}, {1, 2}), box({24}, {12}, {12})}),
            "");
}

// One of them is an extent, and says so in another shape.
TEST(SliceCover, SeesStretchesAsTheOthersAreSeen) {
  constexpr std::int64_t kColumns = 2'000'000;
  const Slice whole = Slice::whole({4, kColumns, 2});
  const Slice rest = whole.narrow(0, {1, 3});
  EXPECT_EQ(fault_of(16'000'000, std::vector{Slice::extent({8, kColumns}, {0, 2 * kColumns}), rest.narrow(2, {0, 1}),
                                             rest.narrow(2, {1, 1})}),
            "");
}

// More elements than could be listed: the boxes themselves are compared.
TEST(SliceCover, ComparesHugeBoxes) {
  constexpr std::int64_t kRows = std::int64_t{1} << 30;
  const auto columns = [](std::int64_t start, std::int64_t size) {
    return box({kRows, 96}, {0, start}, {kRows, size});
  };
  EXPECT_EQ(fault_of(kRows * 96, {columns(48, 48), columns(0, 48)}), "");
  EXPECT_EQ(fault_of(kRows * 96, {columns(48, 48), columns(0, 47)}), "no slice holds element 47");
  EXPECT_EQ(fault_of(kRows * 96, {columns(48, 48), columns(0, 49)}), "slices 0 and 1 overlap at element 48");
  EXPECT_EQ(fault_of(kRows * 96, {columns(0, 95), columns(3, 0)}), "no slice holds element 95");
  EXPECT_EQ(fault_of(kRows * 96, {columns(3, 0), columns(1, 95)}), "no slice holds element 0");
}

TEST(SliceCover, ComparesLargeGrids) {
  EXPECT_EQ(fault_of(1024 * 1024, grid({32, 32}, 32)), "");
  EXPECT_EQ(fault_of(std::int64_t{512} * 512 * 512, grid({16, 16, 16}, 32)), "");
  std::vector<Place> places = grid({16, 16, 16}, 32);
  places[4000].starts[1] = 0;
  EXPECT_NE(fault_of(std::int64_t{512} * 512 * 512, places), "");
}

// Five boxes around a middle: no plane cuts them all.
TEST(SliceCover, AcceptsAPinwheel) {
  constexpr std::int64_t kUnit = 1 << 16;
  const auto part = [](std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
    return box({3 * kUnit, 3 * kUnit}, {row * kUnit, column * kUnit}, {rows * kUnit, columns * kUnit});
  };
  std::vector<Place> places = {part(0, 0, 1, 2), part(0, 2, 2, 1), part(2, 1, 1, 2), part(1, 0, 2, 1),
                               part(1, 1, 1, 1)};
  EXPECT_EQ(fault_of(9 * kUnit * kUnit, places), "");
  places.pop_back();
  EXPECT_EQ(fault_of(9 * kUnit * kUnit, places), "no slice holds element " + std::to_string(3 * kUnit * kUnit + kUnit));
}

// What a hostile manifest may hold: it is refused, and quickly.
TEST(SliceCover, GivesUpWhatTakesTooLong) {
  constexpr std::int64_t kRows = std::int64_t{1} << 30;
  EXPECT_NE(fault_of(kRows * 2, {box({kRows, 2}, {0, 0}, {kRows, 1}), box({2, kRows}, {0, 0}, {2, 1})}), "");
  // Every column is cut in another row: all of them must be looked at for every cut.
  std::vector<Place> steps;
  for (std::int64_t i = 0; i < 5000; ++i) {
    steps.push_back(box({kRows, 5000}, {0, i}, {i + 1, 1}));
    steps.push_back(box({kRows, 5000}, {i + 1, i}, {kRows - i - 1, 1}));
  }
  EXPECT_NE(fault_of(kRows * 5000, steps).find("reasonable time"), std::string::npos);
  // Twenty dimensions, half of each: a million boxes, said in a line.
  Slice halves = Slice::whole(std::vector<std::int64_t>(20, 4));
  for (std::size_t d = 0; d < 20; ++d) halves = halves.select(d, {{0, 1}, {2, 1}});
  EXPECT_NE(fault_of(halves.num_tensor_elements(), std::vector{halves}).find("reasonable time"), std::string::npos);
}

// Random cuts of a small tensor, some of them spoilt, against counting every element.
TEST(SliceCover, AgreesWithCounting) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit));
  };
  int num_faults = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<Place> places = {box({6, 5, 4}, {0, 0, 0}, {6, 5, 4})};
    for (int cut = 0; cut < 6; ++cut) {
      const auto which = static_cast<std::size_t>(below(static_cast<std::int64_t>(places.size())));
      const auto dim = static_cast<std::size_t>(below(3));
      const std::int64_t first = below(places[which].sizes[dim] + 1);
      Place rest = places[which];
      rest.starts[dim] += first;
      rest.sizes[dim] -= first;
      places[which].sizes[dim] = first;
      places.push_back(rest);
    }
    if (round % 2 == 1) {
      Place& place = places[static_cast<std::size_t>(below(static_cast<std::int64_t>(places.size())))];
      const auto dim = static_cast<std::size_t>(below(3));
      place.starts[dim] = below(place.view[dim] - place.sizes[dim] + 1);
    }
    std::vector<int> counts(120, 0);
    for (const Place& place : places) {
      for (std::int64_t i = 0; i < place.sizes[0] * place.sizes[1] * place.sizes[2]; ++i) {
        const std::int64_t a = place.starts[0] + i / (place.sizes[1] * place.sizes[2]);
        const std::int64_t b = place.starts[1] + i / place.sizes[2] % place.sizes[1];
        ++counts[static_cast<std::size_t>((a * 5 + b) * 4 + place.starts[2] + i % place.sizes[2])];
      }
    }
    const bool good = counts == std::vector<int>(120, 1);
    num_faults += good ? 0 : 1;
    EXPECT_EQ(fault_of(120, places).empty(), good) << round;
    // The same as boxes of a tensor that is too large to list its runs.
    for (Place& place : places) {
      for (auto* list : {&place.view, &place.starts, &place.sizes}) {
        for (std::int64_t& number : *list) number *= 100'000;
      }
    }
    EXPECT_EQ(fault_of(std::int64_t{120} * 1'000'000'000'000'000, places).empty(), good) << round;
  }
  EXPECT_GT(num_faults, 100);
}

// What tensor parallelism cut as boxes, of one or more blocks, and sharding cut on as extents.
TEST(SliceCover, AcceptsStretchesOfBoxes) {
  const std::vector<std::int64_t> shape{48, 60, 6};
  for (const std::size_t dim : {0U, 1U, 2U}) {
    std::vector<Slice> slices;
    for (int half = 0; half < 2; ++half) {
      const std::int64_t size = shape[dim] / 3;
      std::vector<Range> ranges;
      for (std::int64_t block = 0; block < 3; ++block) {
        const Range range = Partition(size, 2).of(half);
        ranges.push_back({block * size + range.start, range.size});
      }
      const Slice held = Slice::whole(shape).select(dim, ranges);
      const Partition partition(held.num_elements(), 5, 16);
      for (int part = 0; part < 5; ++part) slices.push_back(held.part(partition.of(part)));
    }
    EXPECT_EQ(fault_of(17280, slices), "");
    const Slice last = slices.back();
    slices.back() = last.part({1, last.num_elements() - 1});
    EXPECT_NE(fault_of(17280, slices).find("no slice holds element"), std::string::npos);
    slices.back() = last;
    slices.push_back(last.part({0, 1}));
    EXPECT_NE(fault_of(17280, slices).find("slices 9 and 10 overlap at element"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
