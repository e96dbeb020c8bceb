// Models of other tests, on the stages of a pipeline: they train as in one process. Those that draw random numbers:
// process/main.cpp.
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "pipeline/training.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

void expect_parity(const PipelineCase& training, const std::vector<int>& sizes) {
  const Values alone = train_alone(training);
  for (const int num_ranks : sizes) {
    std::mutex mutex;
    std::set<std::string> seen;
    run_threads(num_ranks, [&](const World& world) {
      const Values found = train_in_stages(training, world);
      const auto [difference, name] = largest_difference(training, found, alone);
      require(difference <= tolerance_of(training), training.model + " on " + std::to_string(num_ranks) + " ranks, " +
                                                        training.schedule + ": " + name + " differs by " +
                                                        std::to_string(difference * 1e6) + "e-6");
      const std::lock_guard lock(mutex);
      for (const auto& entry : found) seen.insert(entry.first);
    });
    EXPECT_EQ(seen.size(), alone.size()) << training.model << ": some rank must have each value";
  }
}

class PipelineParity : public ::testing::TestWithParam<std::string> {};

TEST_P(PipelineParity, TrainsWithAdamWAsInOneProcess) {
  // Of two layers there cannot be three stages.
  expect_parity({.model = GetParam()}, GetParam() == "lstm" ? std::vector{1, 2} : std::vector{1, 2, 3});
}

TEST_P(PipelineParity, TrainsWithSgdInSinglePrecision) {
  expect_parity({.model = GetParam(), .uses_adamw = false, .dtype = torch::kFloat}, {2});
}

INSTANTIATE_TEST_SUITE_P(Models, PipelineParity,
                         ::testing::Values("gpt", "recomputed gpt", "gpt2", "transformer", "bert", "vit", "resnet",
                                           "unet", "conv", "lstm", "sequential", "function"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

struct ScheduleCase {
  const char* schedule;
  int num_chunks = 0;
};

class PipelineSchedules : public ::testing::TestWithParam<ScheduleCase> {};

TEST_P(PipelineSchedules, TrainAsOneProcess) {
  for (const int num_micro_batches : {1, 4, 7}) {
    for (const char* const model : {"gpt", "recomputed gpt", "transformer"}) {
      expect_parity({.model = model,
                     .schedule = GetParam().schedule,
                     .num_chunks = GetParam().num_chunks,
                     .num_micro_batches = num_micro_batches,
                     .num_steps = 3},
                    {1, 2, 3});
    }
  }
}

TEST_P(PipelineSchedules, TrainWithAutocast) {
  expect_parity({.model = "gpt",
                 .schedule = GetParam().schedule,
                 .num_chunks = GetParam().num_chunks,
                 .dtype = torch::kFloat,
                 .uses_autocast = true,
                 .num_steps = 2},
                {2});
}

INSTANTIATE_TEST_SUITE_P(Kinds, PipelineSchedules,
                         ::testing::Values(ScheduleCase{"sequential"}, ScheduleCase{"round_robin"},
                                           ScheduleCase{"gpipe"}, ScheduleCase{"1f1b"}, ScheduleCase{"interleaved"},
                                           ScheduleCase{"interleaved", 3}, ScheduleCase{"zb-h1"}, ScheduleCase{"zb-v"}),
                         [](const auto& test) {
                           std::string name = test.param.schedule;
                           std::ranges::replace(name, '-', '_');
                           return name + (test.param.num_chunks > 0 ? std::to_string(test.param.num_chunks) : "");
                         });

}  // namespace
}  // namespace tessera::testing
