#include "comm/engine/reduce_kernels.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>

namespace tessera::comm {
namespace {

constexpr std::array kFloats = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
constexpr std::array kIntegers = {at::kLong, at::kInt, at::kShort, at::kChar, at::kByte};
constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
// One block of the kernel holds 2048 elements: below, at, above and between.
constexpr std::array<std::int64_t, 7> kCounts = {0, 1, 7, 2047, 2048, 2049, 5003};

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

void reduce(const std::vector<at::Tensor>& destinations, const std::vector<at::Tensor>& sources, ReduceOp op) {
  std::vector<std::byte*> to;
  std::vector<const std::byte*> from;
  for (const auto& tensor : destinations) to.push_back(bytes_of(tensor));
  for (const auto& tensor : sources) from.push_back(bytes_of(tensor));
  reduce_into(to, from, sources.front().numel(), sources.front().scalar_type(), op, static_cast<int>(sources.size()));
}

/// The same in ATen: half and bfloat16 in float and rounded once, anything else in its own type, in order.
at::Tensor expected_of(const std::vector<at::Tensor>& sources, ReduceOp op) {
  const auto dtype = sources.front().scalar_type();
  const auto wide = dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
  at::Tensor result = sources.front().to(wide).clone();
  for (std::size_t s = 1; s < sources.size(); ++s) {
    const at::Tensor next = sources[s].to(wide);
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg) result = result + next;
    if (op == ReduceOp::kMin) result = at::minimum(result, next);
    if (op == ReduceOp::kMax) result = at::maximum(result, next);
    if (op == ReduceOp::kProduct) result = result * next;
  }
  if (op == ReduceOp::kAvg) result = result / static_cast<double>(sources.size());
  return result.to(dtype);
}

std::vector<at::Tensor> random_sources(at::ScalarType dtype, std::int64_t count, int num_sources) {
  std::vector<at::Tensor> sources;
  for (int s = 0; s < num_sources; ++s) {
    sources.push_back(at::isFloatingType(dtype) ? at::randn({count}).to(dtype) : at::randint(0, 3, {count}).to(dtype));
  }
  return sources;
}

std::string case_name(at::ScalarType dtype, ReduceOp op, std::int64_t count, int num_sources) {
  return std::string(c10::toString(dtype)) + " " + std::string(to_string(op)) + " x" + std::to_string(count) + " of " +
         std::to_string(num_sources);
}

void expect_like_aten(at::ScalarType dtype, ReduceOp op) {
  for (const std::int64_t count : kCounts) {
    for (int num_sources = 1; num_sources <= 5; ++num_sources) {
      const auto sources = random_sources(dtype, count, num_sources);
      const at::Tensor expected = expected_of(sources, op);
      const at::Tensor apart = at::empty_like(sources.front());
      reduce({apart}, sources, op);
      EXPECT_TRUE(at::equal(apart, expected)) << case_name(dtype, op, count, num_sources);
      reduce(sources, sources, op);  // every source is a destination too
      for (const auto& source : sources) {
        EXPECT_TRUE(at::equal(source, expected)) << "in place, " << case_name(dtype, op, count, num_sources);
      }
    }
  }
}

TEST(ReduceKernels, AgreeWithAtenToTheBitForFloatingTypes) {
  at::manual_seed(1);
  for (const auto dtype : kFloats) {
    for (const auto op : kOps) expect_like_aten(dtype, op);
  }
}

TEST(ReduceKernels, AgreeWithAtenForIntegers) {
  at::manual_seed(2);
  for (const auto dtype : kIntegers) {
    for (const auto op : kOps) {
      if (op != ReduceOp::kAvg) expect_like_aten(dtype, op);
    }
  }
}

TEST(ReduceKernels, ASumOfBooleansIsStillABoolean) {
  for (const auto op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    const std::vector<at::Tensor> sources = {at::tensor({0, 1, 0, 1}).to(at::kBool),
                                             at::tensor({0, 0, 1, 1}).to(at::kBool)};
    const at::Tensor result = at::empty({4}, at::kBool);
    reduce({result}, sources, op);
    const bool either = op == ReduceOp::kSum || op == ReduceOp::kMax;
    const at::Tensor expected = either ? sources[0].logical_or(sources[1]) : sources[0].logical_and(sources[1]);
    EXPECT_TRUE(at::equal(result.view(at::kByte), expected.view(at::kByte))) << to_string(op);
  }
}

TEST(ReduceKernels, ANanWinsWhereverItIs) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : kFloats) {
    for (const auto op : kOps) {
      const std::vector<at::Tensor> sources = {at::tensor({kNan, 1.0, 1.0, 1.0}).to(dtype),
                                               at::tensor({1.0, kNan, 2.0, 1.0}).to(dtype),
                                               at::tensor({1.0, 3.0, kNan, 1.0}).to(dtype)};
      const at::Tensor result = at::empty({4}, dtype);
      reduce({result}, sources, op);
      EXPECT_TRUE(at::equal(result.isnan(), at::tensor({1, 1, 1, 0}).to(at::kBool))) << case_name(dtype, op, 4, 3);
    }
  }
}

TEST(ReduceKernels, RoundTheAverageOfHalfTypesOnce) {
  // 1 + e + e with e half a unit in the last place: rounding after every step would lose both e.
  for (const auto& [dtype, e] : {std::pair(at::kHalf, 0x1p-11), std::pair(at::kBFloat16, 0x1p-8)}) {
    const std::vector<at::Tensor> sources = {at::full({3}, 1.0).to(dtype), at::full({3}, e).to(dtype),
                                             at::full({3}, e).to(dtype)};
    const at::Tensor sum = at::empty({3}, dtype);
    reduce({sum}, sources, ReduceOp::kSum);
    EXPECT_EQ(sum[0].item<double>(), 1 + 2 * e) << c10::toString(dtype);
    const at::Tensor average = at::empty({3}, dtype);
    reduce({average}, sources, ReduceOp::kAvg);
    const auto once = at::full({1}, static_cast<float>((1 + 2 * e) / 3)).to(dtype);
    EXPECT_EQ(average[0].item<double>(), once.item<double>()) << c10::toString(dtype);
  }
  // The sum of these does not fit a half, their average does.
  const std::vector<at::Tensor> large(4, at::full({5}, 60000.0).to(at::kHalf));
  const at::Tensor average = at::empty({5}, at::kHalf);
  reduce({average}, large, ReduceOp::kAvg);
  EXPECT_TRUE(at::equal(average, large.front()));
}

TEST(ReduceKernels, DivideInPlace) {
  const at::Tensor values = at::tensor({3.0F, 5.0F, -1.0F});
  divide(bytes_of(values), 3, at::kFloat, 2);
  EXPECT_TRUE(at::equal(values, at::tensor({1.5F, 2.5F, -0.5F})));
}

TEST(ReduceKernels, RefuseTypesThatTheyDoNotKnow) {
  EXPECT_FALSE(is_reducible(at::kComplexFloat));
  EXPECT_TRUE(is_reducible(at::kBFloat16));
  const std::vector<at::Tensor> sources(2, at::zeros({1}, at::kComplexFloat));
  EXPECT_THROW(reduce(sources, sources, ReduceOp::kSum), ConfigError);
}

}  // namespace
}  // namespace tessera::comm
