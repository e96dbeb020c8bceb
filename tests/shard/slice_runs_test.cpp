#include <tessera/shard/slice_runs.h>

#include <gtest/gtest.h>

#include "support/slice_elements.h"

namespace tessera {
namespace {

std::vector<std::int64_t> firsts(const SliceRuns& runs) {
  std::vector<std::int64_t> places;
  for (std::int64_t run = 0; run < runs.num_runs(); ++run) places.push_back(runs.at(run).first);
  return places;
}

TEST(SliceRuns, AreOneForWholeRows) {
  const SliceRuns runs(Slice::whole({4, 3, 5}).narrow(0, {1, 2}));
  EXPECT_EQ(runs.at(0).length, 30);
  EXPECT_EQ(firsts(runs), (std::vector<std::int64_t>{15}));
}

TEST(SliceRuns, AreOneARowForColumns) {
  const SliceRuns runs(Slice::box({2, 3, 4}, {0, 1, 1}, {2, 2, 3}));
  EXPECT_EQ(runs.at(3).length, 3);
  EXPECT_EQ(firsts(runs), (std::vector<std::int64_t>{5, 9, 17, 21}));
}

TEST(SliceRuns, AreOneElementForAScalar) { EXPECT_EQ(firsts(SliceRuns(Slice())), (std::vector<std::int64_t>{0})); }

TEST(SliceRuns, AreNoneForAnEmptySlice) {
  EXPECT_EQ(SliceRuns(Slice::whole({4, 3}).narrow(0, {4, 0})).num_runs(), 0);
  EXPECT_EQ(SliceRuns(Slice::whole({4, 3}).part({7, 0})).num_runs(), 0);
  EXPECT_EQ(SliceRuns(Slice::whole({0, 3})).num_runs(), 0);
}

TEST(SliceRuns, AreTheElementsInOrder) {
  const Slice cube = Slice::whole({4, 5, 6});
  const Slice fused = cube.select(1, {{0, 1}, {3, 2}});
  for (const Slice& slice : {cube, cube.part({7, 50}), cube.narrow(2, {1, 3}), cube.narrow(2, {1, 3}).part({2, 40}),
                             fused, fused.part({13, 29}), fused.part({13, 1}),
                             fused.select(2, {{0, 2}, {3, 1}, {5, 1}}).select(0, {{0, 1}, {2, 2}}),
                             fused.select(2, {{0, 2}, {3, 1}, {5, 1}}).select(0, {{0, 1}, {2, 2}}).part({3, 27})}) {
    const SliceRuns runs(slice);
    std::vector<at::Tensor> places;
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < runs.num_runs(); ++i) {
      const SliceRuns::Run run = runs.at(i);
      EXPECT_EQ(run.begin, begin) << slice.text();
      EXPECT_GT(run.length, 0) << slice.text();
      for (std::int64_t element = run.begin; element < run.begin + run.length; ++element) {
        EXPECT_EQ(runs.run_of(element), i) << slice.text();
      }
      begin += run.length;
      places.push_back(at::arange(run.first, run.last_end(), at::kLong));
    }
    EXPECT_EQ(begin, slice.num_elements());
    EXPECT_TRUE(at::equal(at::cat(places), testing::places_of(slice))) << slice.text();
  }
}

}  // namespace
}  // namespace tessera
