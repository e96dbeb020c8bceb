#include <tessera/core/error.h>
#include <tessera/train/sampler.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace tessera::testing {
namespace {

std::vector<std::int64_t> all_of(const Permutation& order) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(order.size()));
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = order.at(static_cast<std::int64_t>(i));
  return samples;
}

bool is_permutation(std::vector<std::int64_t> samples) {
  std::sort(samples.begin(), samples.end());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

TEST(Permutation, HoldsEachNumberOnceForEverySize) {
  for (std::int64_t size = 1; size <= 600; ++size) {
    ASSERT_TRUE(is_permutation(all_of(Permutation(size, size * 7, size % 3)))) << size;
  }
  for (const std::int64_t size : {65'535, 65'536, 65'537, 1'000'003}) {
    ASSERT_TRUE(is_permutation(all_of(Permutation(size, -1, 5)))) << size;
  }
}

// Saved states rely on it: when this fails, Permutation::kVersion must change.
TEST(Permutation, StaysTheSameInEveryVersion) {
  EXPECT_EQ(Permutation::kVersion, 1);
  EXPECT_EQ(all_of(Permutation(10, 0, 0)), (std::vector<std::int64_t>{0, 6, 7, 3, 8, 9, 4, 1, 2, 5}));
  EXPECT_EQ(Permutation(std::int64_t{1} << 40, 42, 3).at(123'456'789), 225'268'853'388);
}

TEST(Permutation, IsAnotherForEverySeedEpochAndSize) {
  const auto base = all_of(Permutation(1000, 1, 1));
  EXPECT_NE(base, all_of(Permutation(1000, 2, 1)));
  EXPECT_NE(base, all_of(Permutation(1000, 1, 2)));
  EXPECT_NE(all_of(Permutation(1000, 2, 1)), all_of(Permutation(1000, 1, 2))) << "seed and epoch are not added";
  auto larger = all_of(Permutation(1001, 1, 1));
  larger.pop_back();
  EXPECT_NE(base, larger);
}

// Over many seeds each order must come as often as any other. The statistic has the mean `freedom` and the variance
// `2 * freedom`; the seeds are fixed, so the outcome is always the same.
TEST(Permutation, GivesEveryOrderOfAFewSamplesEquallyOften) {
  for (const std::int64_t size : {2, 3, 4, 5}) {
    std::int64_t num_orders = 1;
    for (std::int64_t i = 2; i <= size; ++i) num_orders *= i;
    std::map<std::vector<std::int64_t>, std::int64_t> counts;
    for (std::int64_t seed = 0; seed < 1000 * num_orders; ++seed) ++counts[all_of(Permutation(size, seed, 0))];
    ASSERT_EQ(static_cast<std::int64_t>(counts.size()), num_orders);
    double chi_square = 0;
    for (const auto& [order, count] : counts) chi_square += std::pow(static_cast<double>(count) - 1000, 2) / 1000;
    const auto freedom = static_cast<double>(num_orders - 1);
    EXPECT_LT(chi_square, freedom + 4 * std::sqrt(2 * freedom)) << size;
  }
}

TEST(Permutation, LeavesNoTraceOfTheOriginalOrder) {
  constexpr std::int64_t kSize = 100'000;
  const auto samples = all_of(Permutation(kSize, 3, 0));
  double products = 0;  // of what neighbours lie away from the middle
  std::int64_t num_ascents = 0;
  for (std::size_t i = 0; i + 1 < samples.size(); ++i) {
    const double middle = (kSize - 1) / 2.0;
    products += (static_cast<double>(samples[i]) - middle) * (static_cast<double>(samples[i + 1]) - middle);
    num_ascents += samples[i] < samples[i + 1] ? 1 : 0;
  }
  const double correlation = products / kSize / (static_cast<double>(kSize) * kSize / 12);
  EXPECT_LT(std::abs(correlation), 0.015);
  EXPECT_NEAR(static_cast<double>(num_ascents) / kSize, 0.5, 0.005);
  std::int64_t from_first_half = 0;
  for (std::size_t i = 0; i < kSize / 2; ++i) from_first_half += samples[i] < kSize / 2 ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(from_first_half) / (kSize / 2.0), 0.5, 0.01);
}

TEST(Permutation, ReachesFarIntoLargeDatasetsAtOnce) {
  constexpr std::int64_t kSize = (std::int64_t{1} << 60) + 12345;
  const Permutation order(kSize, 8, 1);
  for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1} << 59, kSize - 1}) {
    EXPECT_GE(order.at(position), 0);
    EXPECT_LT(order.at(position), kSize);
  }
  EXPECT_NE(order.at(0), order.at(1));
}

TEST(Permutation, RefusesAnEmptyDataset) {
  EXPECT_THROW(Permutation(0, 0, 0), ConfigError);
  EXPECT_THROW(Permutation(-1, 0, 0), ConfigError);
  EXPECT_THROW(Permutation((std::int64_t{1} << 62) + 1, 0, 0), ConfigError);
  EXPECT_EQ(Permutation(1, 9, 9).at(0), 0);
}

}  // namespace
}  // namespace tessera::testing
