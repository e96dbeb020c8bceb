#include "checkpoint/plan/save_plan.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/plan/write_extent.h"
#include "support/error_message.h"

namespace tessera::checkpoints {
namespace {

using testing::expect_parts;
using testing::message_of;

constexpr std::uint64_t kLarge = 1U << 30;

SliceDescription part(const std::string& name, Slice slice, const std::string& group = "model") {
  return {group, name, StoredDtype::kF32, std::move(slice)};
}

SliceDescription whole(const std::string& name, const std::vector<std::int64_t>& shape) {
  return part(name, Slice::whole(shape));
}

/// Elements that each rank writes of all tensors.
std::vector<std::int64_t> written(const SavePlan& plan) {
  std::vector<std::int64_t> elements;
  for (const auto& slices : plan.of_rank) {
    elements.push_back(0);
    for (const PlannedWrite& one : slices) {
      elements.back() += plan.manifest.tensors[one.tensor].slices[one.slice].slice.num_elements();
    }
  }
  return elements;
}

TEST(SavePlan, WritesEverySliceOfShardsByItsHolder) {
  const auto plan =
      SavePlan::make({{part("w", Slice::extent({4, 3}, {0, 7}))}, {part("w", Slice::extent({4, 3}, {7, 5}))}}, kLarge);
  EXPECT_EQ(written(plan), (std::vector<std::int64_t>{7, 5}));
  EXPECT_EQ(plan.manifest.num_ranks, 2);
  ASSERT_EQ(plan.manifest.tensors.size(), 1U);
  EXPECT_EQ(plan.manifest.tensors[0].slices[1].rank, 1);
}

TEST(SavePlan, SharesOutWhatAllRanksHold) {
  std::vector<SliceDescription> model;
  for (int i = 0; i < 10; ++i) model.push_back(whole("w" + std::to_string(i), {1000, 37}));
  for (const std::size_t num_ranks : {1U, 2U, 3U, 7U}) {
    const auto plan = SavePlan::make(std::vector(num_ranks, model), kLarge);
    const auto elements = written(plan);
    const auto [least, most] = std::minmax_element(elements.begin(), elements.end());
    EXPECT_LE(*most - *least, 2 * 4096 / 4) << num_ranks << " ranks";
    std::int64_t all = 0;
    for (const std::int64_t count : elements) all += count;
    EXPECT_EQ(all, 370000) << num_ranks << " ranks";
  }
}

TEST(SavePlan, CutsBetweenRanksAtPagesOfTheFile) {
  const auto plan = SavePlan::make(std::vector(3, std::vector{whole("w", {100000})}), kLarge);
  ASSERT_EQ(plan.manifest.tensors[0].slices.size(), 3U);
  for (std::size_t i = 1; i < 3; ++i) {
    const auto start = static_cast<std::uint64_t>(plan.manifest.tensors[0].slices[i].slice.as_extent()->start);
    EXPECT_EQ((plan.tensor_start[0] + 4 * start) % 4096, 0U);
  }
}

TEST(SavePlan, SharesOutReplicasOfShards) {
  // Hybrid: ranks 0 and 2 hold one half, 1 and 3 the other.
  const auto low = part("w", Slice::extent({1 << 20}, {0, 1 << 19}));
  const auto high = part("w", Slice::extent({1 << 20}, {1 << 19, 1 << 19}));
  const auto plan = SavePlan::make({{low}, {high}, {low}, {high}}, kLarge);
  for (const std::int64_t count : written(plan)) EXPECT_NEAR(static_cast<double>(count), 1 << 18, 1024);
}

TEST(SavePlan, KeepsBoxesInOnePiece) {
  const Slice left = Slice::whole({4, 6}).narrow(1, {0, 3});
  const Slice right = Slice::whole({4, 6}).narrow(1, {3, 3});
  const auto plan = SavePlan::make({{part("w", left)}, {part("w", right)}}, kLarge);
  EXPECT_EQ(plan.manifest.tensors[0].slices[0].slice, left);
  EXPECT_EQ(plan.manifest.tensors[0].slices[1].slice, right);
}

TEST(SavePlan, SpreadsLargeGroupsOverFilesWithAnIndex) {
  std::vector<SliceDescription> model;
  for (int i = 0; i < 5; ++i) model.push_back(whole("w" + std::to_string(i), {100}));
  const auto plan = SavePlan::make({model}, 1000);
  ASSERT_EQ(plan.files.size(), 4U);
  EXPECT_EQ(plan.files[0].name, "model-00001-of-00003.safetensors");
  EXPECT_EQ(plan.files[3].name, "model.safetensors.index.json");
  EXPECT_EQ(plan.files[3].text.size(), plan.files[3].num_bytes);
}

TEST(SavePlan, GivesEachGroupFilesOfItsOwn) {
  const auto plan = SavePlan::make({{whole("w", {2}), part("w/exp_avg", Slice::whole({2}), "optimizer")}}, kLarge);
  ASSERT_EQ(plan.files.size(), 2U);
  EXPECT_EQ(plan.files[0].name, "model.safetensors");
  EXPECT_EQ(plan.files[1].name, "optimizer.safetensors");
}

TEST(SavePlan, RefusesWhatDoesNotMakeUpATensor) {
  const auto make = [](const std::vector<std::vector<SliceDescription>>& of_ranks) {
    return message_of<ConfigError>([&] { SavePlan::make(of_ranks, kLarge); });
  };
  const auto extent = [](std::int64_t start, std::int64_t size) {
    return part("w", Slice::extent({10}, {start, size}));
  };
  expect_parts(make({{extent(0, 4)}, {extent(5, 5)}}), {"\"w\"", "element 4 of 10"});
  expect_parts(make({{extent(0, 6)}, {extent(5, 5)}}), {"\"w\"", "overlap", "rank 0", "rank 1"});
  expect_parts(make({{whole("w", {10})}, {whole("w", {2, 5})}}), {"\"w\"", "rank 0", "rank 1"});
  expect_parts(make({{whole("w", {10}), whole("w", {10})}}), {"\"w\"", "twice", "rank 0"});
}

TEST(SavePlan, TellsOtherRanksOfSlices) {
  const Slice all = Slice::whole({4, 6});
  const std::vector<SliceDescription> slices{
      part("a\"b\n", all.narrow(1, {3, 3})), whole("", {}), part("fused", all.select(1, {{0, 1}, {4, 2}})),
      part("cut", all.narrow(1, {3, 3}).part({2, 7})), part("row", all.part({5, 9}))};
  EXPECT_EQ(slices_from_text(to_text(slices)), slices);
}

TEST(CopyLayout, LaysLargeSlicesAsTheyLieInTheirPages) {
  const SavePlan plan = SavePlan::make(
      {{whole("a", {3}), whole("b", {1 << 20}), whole("c", {5}), whole("d", {1 << 17}), whole("e", {1 << 17})}},
      kLarge);
  const CopyLayout layout = CopyLayout::of(plan, 0);
  std::size_t end = 0;
  for (std::size_t i = 0; i < layout.places.size(); ++i) {
    const PlannedWrite& planned = plan.of_rank[0][i];
    EXPECT_GE(layout.places[i], end) << i;
    EXPECT_EQ(layout.places[i] % 4, 0U) << i;
    if (plan.bytes_of(planned) >= kLeastDirect) {
      EXPECT_EQ(layout.places[i] % 4096, plan.offset_of(planned) % 4096) << i;
    }
    end = layout.places[i] + plan.bytes_of(planned);
  }
  EXPECT_EQ(layout.num_bytes, end);
  EXPECT_EQ(layout.places[4], layout.places[3] + (4U << 17)) << "slices that touch in the file touch in the copy";
}

}  // namespace
}  // namespace tessera::checkpoints
