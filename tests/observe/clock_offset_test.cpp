#include <tessera/core/error.h>
#include <tessera/observe/tracer.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

namespace tessera::observe {
namespace {

/// What is measured when the other clock is ahead by `offset`, and the two ways take so long.
RoundTrip trip(std::int64_t start, std::int64_t offset, std::int64_t there, std::int64_t back) {
  return {start, start + there + offset, start + there + back};
}

TEST(ClockOffset, IsExactWhenBothWaysAreEqual) {
  const std::vector<RoundTrip> trips = {trip(1000, 5'000'000, 40, 40)};
  const ClockOffset offset = estimate_offset(trips);
  EXPECT_EQ(offset.offset_ns, 5'000'000);
  EXPECT_EQ(offset.error_ns, 40);
}

TEST(ClockOffset, TakesTheQuickestRoundTrip) {
  const std::vector<RoundTrip> trips = {trip(0, -300, 900'000, 10), trip(100, -300, 20, 24),
                                        trip(200, -300, 15, 90'000)};
  const ClockOffset offset = estimate_offset(trips);
  EXPECT_EQ(offset.offset_ns, -302);
  EXPECT_EQ(offset.error_ns, 22);
}

TEST(ClockOffset, IsNeverFurtherOffThanItsBound) {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<std::int64_t> any_offset(-1'000'000'000'000, 1'000'000'000'000);
  std::exponential_distribution<double> delay(1.0 / 50'000);
  for (int round = 0; round < 1000; ++round) {
    const std::int64_t truth = any_offset(random);
    std::vector<RoundTrip> trips;
    for (int i = 0; i < 8; ++i) {
      const auto there = static_cast<std::int64_t>(delay(random));
      const auto back = static_cast<std::int64_t>(delay(random));
      trips.push_back(trip(i * 1'000'000, truth, there, back));
    }
    const ClockOffset offset = estimate_offset(trips);
    EXPECT_LE(std::abs(offset.offset_ns - truth), offset.error_ns);
  }
}

TEST(ClockOffset, AddsUpAlongTheWay) {
  const ClockOffset sum = ClockOffset{100, 3} + ClockOffset{-40, 5};
  EXPECT_EQ(sum.offset_ns, 60);
  EXPECT_EQ(sum.error_ns, 8);
}

TEST(ClockOffset, NeedsARoundTrip) { EXPECT_THROW(estimate_offset({}), InternalError); }

}  // namespace
}  // namespace tessera::observe
