#include "checkpoint/format/manifest_reader.h"

#include <tessera/checkpoint/manifest.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera::checkpoints {
namespace {

using testing::expect_parts;
using testing::message_of;
using Numbers = std::vector<std::int64_t>;

TEST(SliceMembers, SayBoxesAndStretchesAsTheFirstVersionDid) {
  const Slice whole = Slice::whole({4, 6});
  EXPECT_EQ(members_of(whole).view, Numbers{24});
  const SliceMembers box = members_of(whole.narrow(1, {2, 3}));
  EXPECT_EQ(box.view, (Numbers{4, 6}));
  EXPECT_EQ(box.starts, (Numbers{0, 2}));
  EXPECT_EQ(box.sizes, (Numbers{4, 3}));
  EXPECT_TRUE(box.is_box());
  const SliceMembers extent = members_of(whole.part({5, 9}));
  EXPECT_EQ(extent.starts, Numbers{5});
  EXPECT_EQ(extent.sizes, Numbers{9});
  EXPECT_TRUE(extent.is_box());
}

TEST(SliceMembers, SayEverySlice) {
  const Slice whole = Slice::whole({4, 6});
  const Slice fused = whole.select(1, {{0, 1}, {3, 2}});
  for (const Slice& slice :
       {whole, whole.narrow(1, {2, 3}), whole.part({5, 9}), fused, fused.part({2, 7}), fused.part({1, 0})}) {
    const SliceMembers members = members_of(slice.canonical());
    EXPECT_EQ(slice_of(members, {4, 6}), slice.canonical()) << slice.text();
    EXPECT_EQ(members.is_box(), slice != fused && slice != fused.part({2, 7})) << slice.text();
  }
  EXPECT_EQ(slice_of({{2, 2, 6}, {1, 0, 0}, {1, 2, 3}, {}, {}}, {4, 6}).shape(), (Numbers{2, 2, 6}))
      << "a box of another view of the same elements";
}

TEST(SliceMembers, RefuseWhatIsNoSlice) {
  const auto refused = [](const SliceMembers& members) {
    return message_of<ConfigError>([&] { slice_of(members, {4, 6}); });
  };
  expect_parts(refused({{25}, {0}, {25}, {}, {}}), {"the view [25]", "[4, 6]"});
  expect_parts(refused({{24}, {1}, {24}, {}, {}}), {"not inside"});
  expect_parts(refused({{4, 6}, {0, 0}, {4, 6}, {1}, {}}), {"the ranges [1]", "2 dimensions"});
  expect_parts(refused({{4, 6}, {0, 0}, {4, 6}, {1, 2}, {}}), {"the ranges [1, 2]", "2 starts"});
  expect_parts(refused({{4, 6}, {0, 0, 1}, {4, 6}, {1, 2}, {}}), {"3 starts", "2 sizes"});
  expect_parts(refused({{4, 6}, {0, 3, 0}, {4, 1, 2}, {1, 2}, {}}), {"ascend"});
  expect_parts(refused({{4, 6}, {0, 0}, {4, 3}, {}, {1}}), {"part", "[1]"});
  expect_parts(refused({{4, 6}, {0, 0}, {4, 3}, {}, {8, 5}}), {"8:13", "12"});
  Slice combed = Slice::whole({10'000, 2});
  std::vector<Range> teeth;
  for (std::int64_t i = 0; i < 5000; ++i) teeth.push_back({2 * i, 1});
  expect_parts(message_of<ConfigError>([&] { members_of(combed.select(0, teeth)); }), {"5001 ranges", "4096"});
}

TEST(Manifest, SaysTheFirstVersionThatCanTellItsSlices) {
  Manifest manifest;
  manifest.files = {{"model.safetensors", 4096, 4000, 1}};
  const Slice left = Slice::whole({4, 6}).narrow(1, {0, 3});
  const Slice right = Slice::whole({4, 6}).narrow(1, {3, 3});
  manifest.tensors = {{"w", "model", StoredDtype::kF32, {4, 6}, 0, {{0, left, {1}}, {0, right, {2}}}}};
  EXPECT_NE(manifest.to_json().find(R"("version":1)"), std::string::npos);
  EXPECT_EQ(Manifest::parse(manifest.to_json(), "text"), manifest);
  manifest.tensors[0].slices = {{0, left, {1}}, {0, right.part({0, 5}), {2}}, {0, right.part({5, 7}), {2}}};
  const std::string text = manifest.to_json();
  EXPECT_NE(text.find(R"("version":2)"), std::string::npos);
  EXPECT_NE(text.find(R"("part":[5,7])"), std::string::npos);
  EXPECT_EQ(Manifest::parse(text, "text"), manifest);
}

}  // namespace
}  // namespace tessera::checkpoints
