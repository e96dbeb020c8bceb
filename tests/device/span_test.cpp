#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "support/sim_device/span.h"

namespace tessera::testing::sim {
namespace {

using at::Tensor;

bool touch(const Tensor& one, const Tensor& two) {
  const bool found = Span(one).touches(Span(two));
  EXPECT_EQ(found, Span(two).touches(Span(one)));
  return found;
}

TEST(Span, IsOfBytesAndNotOfWhatLiesBetween) {
  const Tensor table = at::zeros({6, 8});
  EXPECT_TRUE(touch(table.select(1, 2), table));
  EXPECT_TRUE(touch(table.select(1, 2), table.select(0, 3)));
  EXPECT_FALSE(touch(table.select(1, 2), table.select(1, 3)));
  EXPECT_FALSE(touch(table.slice(1, 0, 4), table.slice(1, 4, 8)));
  EXPECT_TRUE(touch(table.slice(1, 0, 5), table.slice(1, 4, 8)));
  EXPECT_FALSE(touch(table.slice(1, 0, 8, 2), table.slice(1, 1, 8, 2)));
  EXPECT_FALSE(touch(table.slice(0, 0, 6, 2).slice(1, 0, 3), table.slice(0, 1, 6, 2)));
  EXPECT_FALSE(touch(table, at::zeros({3})));
  EXPECT_FALSE(touch(table, table.slice(0, 2, 2)));
}

TEST(Span, OfATransposedOrExpandedTensorIsThatOfItsMemory) {
  const Tensor table = at::zeros({6, 8});
  EXPECT_TRUE(Span(table.t()).is_dense());
  EXPECT_TRUE(Span(table.select(0, 0).expand({4, 8})).is_dense());
  EXPECT_TRUE(Span(table.unfold(1, 4, 2)).is_dense());
  EXPECT_TRUE(Span(table).covers(Span(table.select(1, 2))));
  EXPECT_FALSE(Span(table.select(1, 2)).covers(Span(table.select(1, 2))));
}

TEST(Span, AgreesWithTheSetsOfBytes) {
  const Tensor memory = at::arange(120, at::kByte);
  at::manual_seed(7);
  const auto pick = [](std::int64_t below) { return at::randint(below, {1}).item<std::int64_t>(); };
  const auto any_view = [&] {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    for (std::int64_t d = pick(4); d > 0; --d) {
      sizes.push_back(1 + pick(4));
      strides.push_back(pick(10));
    }
    return memory.as_strided(sizes, strides, pick(30));
  };
  int num_touching = 0;
  for (int i = 0; i < 3000; ++i) {
    const Tensor one = any_view();
    const Tensor two = any_view();
    const auto bytes_of = [](const Tensor& tensor) {
      const Tensor flat = tensor.reshape({-1}).contiguous();
      return std::set<int>(flat.data_ptr<std::uint8_t>(), flat.data_ptr<std::uint8_t>() + flat.numel());
    };
    const auto bytes = bytes_of(one);
    bool expected = false;
    for (const int byte : bytes_of(two)) expected = expected || bytes.contains(byte);
    num_touching += expected ? 1 : 0;
    EXPECT_EQ(touch(one, two), expected) << one.sizes() << one.strides() << two.sizes() << two.strides();
  }
  EXPECT_GT(num_touching, 300);
  EXPECT_LT(num_touching, 2700);
}

}  // namespace
}  // namespace tessera::testing::sim
