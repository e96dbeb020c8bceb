#include <tessera/comm/world.h>
#include <tessera/shard/exact_sum.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera {
namespace {

/// Of sizes from 1e-30 to 1e30, in no order.
at::Tensor wild(std::int64_t count, at::ScalarType dtype = at::kDouble) {
  const at::Tensor numbers = at::arange(count, at::kDouble);
  return (at::sin(numbers * 12.9) * at::pow(10, 14 * at::sin(numbers * 78.2))).to(dtype);
}

double sum_of(const at::Tensor& values) {
  ExactSum sum;
  sum.add_squares({values});
  return sum.value();
}

TEST(ExactSum, IsExact) {
  EXPECT_EQ(sum_of(at::full({10}, 3.0)), 90);
  EXPECT_EQ(sum_of(at::tensor({0x1p30, 0x1p-20}, at::kDouble)), 0x1p60) << "rounded once";
  EXPECT_EQ(sum_of(at::tensor({0x1p-520, 0x1p-537}, at::kDouble)), 0x1p-1040 + 0x1p-1074);
  EXPECT_EQ(sum_of(at::tensor({0x1p511}, at::kDouble)), 0x1p1022);
  EXPECT_EQ(sum_of(at::zeros({3})), 0);
  EXPECT_EQ(sum_of(at::zeros({0})), 0);
  // In double each of the small ones would be rounded away.
  at::Tensor values = at::full({1 << 20}, 0x1p-27, at::kDouble);
  values[0] = 1.0;
  EXPECT_EQ(sum_of(values), 1 + 0x1p-54 * ((1 << 20) - 1));
}

TEST(ExactSum, IsCloseToAnOrdinarySum) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor values = at::sin(at::arange(100003, at::kDouble)).to(dtype);
    const double expected = values.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(sum_of(values), expected, 1e-12 * expected) << c10::toString(dtype);
  }
}

TEST(ExactSum, IsTheSameInAnyOrderAndInAnyParts) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor values = wild(200001, dtype);
    const double expected = sum_of(values);
    EXPECT_EQ(sum_of(values.flip(0)), expected);
    EXPECT_EQ(sum_of(std::get<0>(values.sort())), expected);
    for (const std::int64_t size : {17, 4096, 70000}) {
      ExactSum sum;
      for (const at::Tensor& part : values.split(size)) {
        ExactSum of_part;
        of_part.add_squares({part});
        sum.add(of_part);
      }
      EXPECT_EQ(sum.value(), expected) << size;
    }
    // What an ordinary sum does not promise.
    const at::Tensor squares = values.to(at::kDouble).square();
    EXPECT_NE(squares.cumsum(0)[-1].item<double>(), squares.flip(0).cumsum(0)[-1].item<double>());
  }
}

TEST(ExactSum, IsTheSameForAnyNumberOfThreads) {
  const at::Tensor values = wild(1 << 19, at::kFloat);
  const double expected = sum_of(values);
  at::set_num_threads(4);
  EXPECT_EQ(sum_of(values), expected);
  at::set_num_threads(1);
}

TEST(ExactSum, IsTheSameHoweverManyRanksShareIt) {
  const at::Tensor values = wild(10007);
  const double expected = sum_of(values);
  for (const int num_ranks : {1, 2, 3, 5}) {
    run_threads(num_ranks, [&](const World& world) {
      ExactSum sum;
      sum.add_squares({values.tensor_split(world.size())[static_cast<std::size_t>(world.rank())]});
      sum.all_reduce(world.comm());
      EXPECT_EQ(sum.value(), expected) << num_ranks;
    });
  }
}

TEST(ExactSum, TellsWhatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of(at::tensor({1.0, -infinity}, at::kDouble)), infinity);
  EXPECT_EQ(sum_of(at::tensor({1e200}, at::kDouble)), infinity) << "its square is no double";
  EXPECT_TRUE(std::isnan(sum_of(at::tensor({infinity, std::nan("")}, at::kFloat))));
}

}  // namespace
}  // namespace tessera
