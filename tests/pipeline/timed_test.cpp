// Steps of stages that take a set time, against the simulated schedule: what the runtime itself costs.
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "pipeline/timed.h"

namespace tessera::testing {
namespace {

constexpr double kTolerance = 0.03;
constexpr double kToleranceBehindOthers = 0.2;  // where the ranks wait for cores
constexpr int kTries = 6;                       // the fastest counts: others may use the cores

using Size = std::tuple<std::string, int, int>;  // schedule, ranks, micro-batches

class TimedStages : public ::testing::TestWithParam<Size> {};

TEST_P(TimedStages, TakeTheSimulatedTime) {
  const std::string schedule = std::get<0>(GetParam());
  const int num_ranks = std::get<1>(GetParam());
  const int num_micro_batches = std::get<2>(GetParam());
  const TimedCosts costs;
  TimedStep expected;
  TimedStep found;
  double tolerance = kTolerance;
  run_threads(num_ranks, [&](const World& world) {
    TimedPipeline pipe(world, schedule, num_micro_batches, costs);
    const TimedStep wanted = simulated(pipe.schedule(), costs);
    pipe.step();  // connects
    TimedStep best = pipe.step();
    for (int i = 1; i < kTries && best.seconds > wanted.seconds * (1 + kTolerance); ++i) {
      const TimedStep one = pipe.step();
      best.seconds = std::min(best.seconds, one.seconds);
      for (std::size_t r = 0; r < one.num_live.size(); ++r)
        best.num_live[r] = std::max(best.num_live[r], one.num_live[r]);
    }
    if (world.rank() != 0) return;
    expected = wanted;
    found = best;
    if (!pipe.gets_a_core_at_once()) tolerance = kToleranceBehindOthers;
  });
  EXPECT_NEAR(found.seconds / expected.seconds, 1, tolerance);
  EXPECT_EQ(found.num_live, expected.num_live);
}

INSTANTIATE_TEST_SUITE_P(Schedules, TimedStages,
                         ::testing::Combine(::testing::Values("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"),
                                            ::testing::Values(2, 4), ::testing::Values(8)),
                         [](const auto& test) {
                           std::string name = std::get<0>(test.param) + "On" + std::to_string(std::get<1>(test.param));
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace tessera::testing
