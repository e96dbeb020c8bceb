#include "comm/clock_comparison.h"

#include <tessera/comm/world.h>
#include <tessera/flight/clock.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>

namespace tessera::comm {
namespace {

/// Each rank's clock is wrong in its own way.
std::int64_t error_of(std::int64_t rank) { return rank * rank * 1'000'000'000'000 - rank * 777'777'777; }

class ClockComparison : public ::testing::TestWithParam<int> {};

TEST_P(ClockComparison, FindsShiftedClocksWithinItsBound) {
  std::mutex mutex;
  run_threads(GetParam(), [&](const World& world) {
    const std::int64_t error = error_of(world.rank());
    const auto offset = compare_clocks(world.comm(), [&] { return flight::now_ns() + error; });
    const std::lock_guard lock(mutex);
    EXPECT_LE(std::abs(offset.offset_ns - (error_of(0) - error)), offset.error_ns) << "rank " << world.rank();
    EXPECT_LT(offset.error_ns, 1'000'000'000) << "a second is no bound";
    if (world.rank() == 0) {
      EXPECT_EQ(offset.offset_ns, 0);
      EXPECT_EQ(offset.error_ns, 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ClockComparison, ::testing::Values(1, 2, 3, 5, 8),
                         [](const auto& test) { return "Of" + std::to_string(test.param); });

}  // namespace
}  // namespace tessera::comm
