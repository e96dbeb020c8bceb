#include <tessera/core/error.h>
#include <tessera/shard/slice.h>

#include <gtest/gtest.h>

#include <random>

#include "support/error_message.h"
#include "support/slice_elements.h"

namespace tessera {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::places_of;
using Shape = std::vector<std::int64_t>;

class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  std::int64_t below(std::int64_t limit) { return static_cast<std::int64_t>(random_() % static_cast<unsigned>(limit)); }
  Range range(std::int64_t size) {
    const std::int64_t start = below(size + 1);
    return {start, below(size - start + 1)};
  }
  /// Ascending, some of them empty or side by side.
  std::vector<Range> ranges(std::int64_t size) {
    std::vector<Range> found;
    std::int64_t end = 0;
    for (std::int64_t i = 1 + below(3); i > 0; --i) {
      const Range next = range(size - end);
      found.push_back({end + next.start, next.size});
      end = found.back().end();
    }
    return found;
  }

 private:
  std::mt19937 random_;
};

at::Tensor taken(const at::Tensor& whole, std::size_t dim, const std::vector<Range>& ranges) {
  std::vector<at::Tensor> parts{whole.narrow(static_cast<std::int64_t>(dim), 0, 0)};
  for (const Range& range : ranges) {
    parts.push_back(whole.narrow(static_cast<std::int64_t>(dim), range.start, range.size));
  }
  return at::cat(parts, static_cast<std::int64_t>(dim));
}

TEST(Slice, KnowsItsElements) {
  EXPECT_EQ(Slice().num_elements(), 1);
  EXPECT_EQ(Slice(), Slice::whole({}));
  EXPECT_EQ(Slice::whole({3, 4}).num_elements(), 12);
  EXPECT_EQ(Slice::whole({3, 0}).num_elements(), 0);
  const Slice box = Slice::box({4, 6}, {1, 2}, {2, 3});
  EXPECT_EQ(box, Slice::whole({4, 6}).narrow(0, {1, 2}).narrow(1, {2, 3}));
  EXPECT_EQ(box.selected_shape(), (Shape{2, 3}));
  EXPECT_EQ(box.as_extent(), std::nullopt);
  EXPECT_EQ(Slice::whole({4, 6}).narrow(0, {1, 2}).as_extent(), (Range{6, 12}));
  EXPECT_EQ(box.part({1, 2}).as_extent(), (Range{9, 2}));
  EXPECT_EQ(Slice::extent({4, 6}, {5, 7}).as_extent(), (Range{5, 7}));
}

// The heart of it: taking of what was taken is the same as taking at once.
TEST(Slice, OfASliceIsASlice) {
  Dice dice(11);
  for (int round = 0; round < 3000; ++round) {
    Shape shape;
    for (std::int64_t d = dice.below(4); d >= 0; --d) shape.push_back(dice.below(6));
    Slice slice = Slice::whole(shape);
    at::Tensor expected = at::arange(slice.num_elements(), at::kLong).view(shape);
    for (std::int64_t i = dice.below(4); i > 0; --i) {
      const auto dim = static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(shape.size())));
      const auto ranges = dice.ranges(expected.size(static_cast<std::int64_t>(dim)));
      expected = taken(expected, dim, ranges);
      slice = dice.below(2) == 0 ? slice.select(dim, ranges)
                                 : slice.then(Slice::whole(slice.selected_shape()).select(dim, ranges));
      ASSERT_EQ(slice.selected_shape(), expected.sizes().vec());
    }
    at::Tensor flat = expected.flatten();
    for (std::int64_t i = dice.below(3); i > 0; --i) {
      const Range part = dice.range(flat.numel());
      flat = flat.narrow(0, part.start, part.size);
      slice = dice.below(2) == 0 ? slice.part(part) : slice.then(Slice::extent({slice.num_elements()}, part));
    }
    ASSERT_TRUE(at::equal(places_of(slice), flat)) << slice.text();
    ASSERT_TRUE(at::equal(places_of(slice.canonical()), flat)) << slice.text() << ", " << slice.canonical().text();
    ASSERT_EQ(slice.canonical().canonical(), slice.canonical());
    const auto extent = slice.as_extent();
    const bool is_extent = flat.numel() == 0 || (flat[-1] - flat[0]).item<std::int64_t>() == flat.numel() - 1;
    ASSERT_EQ(extent.has_value(), is_extent);
    if (extent && extent->size > 0) {
      ASSERT_EQ(extent->start, flat[0].item<std::int64_t>());
    }
    const auto boxes = slice.boxes(10'000);
    ASSERT_TRUE(boxes.has_value());
    std::vector<at::Tensor> places{at::empty({0}, at::kLong)};
    for (const Slice::Box& box : *boxes) {
      Slice as_slice = Slice::whole(shape);
      for (std::size_t d = 0; d < shape.size(); ++d) as_slice = as_slice.narrow(d, box[d]);
      places.push_back(places_of(as_slice));
    }
    ASSERT_TRUE(at::equal(std::get<0>(at::cat(places).sort()), flat)) << slice.text();
  }
}

// The same elements, taken in other ways: replicas must be found whoever says what they are.
TEST(Slice, IsSaidInOneWay) {
  const Slice whole = Slice::whole({8, 6});
  const Slice columns = whole.narrow(1, {2, 3});
  EXPECT_EQ(whole.narrow(0, {2, 3}).canonical(), whole.part({12, 18}).canonical());
  EXPECT_EQ(columns.part({3, 6}).canonical(), columns.narrow(0, {1, 2}).canonical());
  EXPECT_EQ(columns.part({4, 1}).canonical(), whole.part({9, 1}).canonical());
  EXPECT_EQ(columns.part({4, 2}).canonical(), whole.part({9, 2}).canonical());
  EXPECT_EQ(columns.part({4, 7}).canonical(), columns.narrow(0, {1, 3}).part({1, 7}).canonical());
  EXPECT_EQ(whole.select(1, {{0, 2}, {2, 3}}), whole.narrow(1, {0, 5})) << "neighbours are one";
  EXPECT_NE(columns.canonical(), whole.narrow(1, {1, 3}).canonical());
  EXPECT_EQ(columns.part({5, 0}).canonical(), whole.part({0, 0}).canonical());
}

TEST(Slice, RefusesWhatDoesNotLieInTheTensor) {
  const auto refused = [](const Shape& starts, const Shape& sizes) {
    return message_of<ConfigError>([&] { Slice::box({4, 3}, starts, sizes); });
  };
  expect_parts(refused({0, 1}, {4, 3}), {"[4, 3]", "[0, 1]", "not inside"});
  expect_parts(refused({-1, 0}, {1, 1}), {"not inside"});
  expect_parts(refused({0, 0}, {1, -1}), {"not inside"});
  expect_parts(refused({0}, {1}), {"not inside"});
  expect_parts(refused({INT64_MAX, 0}, {INT64_MAX, 1}), {"not inside"});
  const Slice whole = Slice::whole({4, 3});
  expect_parts(message_of<ConfigError>([&] { whole.part({10, 3}); }),
               {"elements 10:13", "do not lie in all of [4, 3]", "which has 12"});
  expect_parts(message_of<ConfigError>([&] { whole.select(1, {{1, 1}, {0, 1}}); }),
               {"1:2+0:1", "ascend", "dimension 1"});
  expect_parts(message_of<ConfigError>([&] { whole.select(2, {}); }),
               {"no indices of dimension 2", "can be taken of all of [4, 3]"});
  expect_parts(message_of<ConfigError>([&] { whole.part({1, 5}).narrow(0, {0, 1}); }), {"dimension 0", "elements 1:6"});
  expect_parts(message_of<ConfigError>([&] { whole.then(Slice::whole({3, 3})); }),
               {"all of [3, 3] cannot be taken of all of [4, 3]"});
  expect_parts(message_of<ConfigError>([&] { whole.part({INT64_MAX, INT64_MAX}); }), {"do not lie in"});
  expect_parts(message_of<ConfigError>([&] { whole.select(0, {{INT64_MAX, INT64_MAX}}); }), {"ascend"});
  expect_parts(message_of<ConfigError>([&] { Slice::whole({INT64_MAX, 2}); }), {"counted"});
  expect_parts(message_of<ConfigError>([&] { Slice::whole({-1}); }), {"[-1]"});
  EXPECT_EQ(Slice::whole({INT64_MAX, 2, 0}).num_elements(), 0);
}

TEST(Slice, TellsWhatItIs) {
  const Slice whole = Slice::whole({4, 8});
  EXPECT_EQ(whole.text(), "all of [4, 8]");
  EXPECT_EQ(whole.part({8, 7}).text(), "elements 8:15 of [4, 8]");
  EXPECT_EQ(whole.select(1, {{2, 2}, {6, 2}}).text(), "[0:4, 2:4+6:8] of [4, 8]");
  EXPECT_EQ(whole.select(1, {{2, 2}, {6, 2}}).part({3, 4}).text(), "elements 3:7 of [0:4, 2:4+6:8] of [4, 8]");
}

TEST(Slice, GivesUpOnTooManyBoxes) {
  const std::vector<Range> odd{{0, 1}, {2, 1}, {4, 1}, {6, 1}};
  const Slice slice = Slice::whole({8, 8, 8}).select(0, odd).select(1, odd).select(2, odd);
  EXPECT_EQ(slice.boxes(64)->size(), 64U);
  EXPECT_EQ(slice.boxes(63), std::nullopt);
}

}  // namespace
}  // namespace tessera
