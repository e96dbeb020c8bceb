// Pipelines beside other axes: copies or shards of the stages along "dp", layers that are cut along "tp". They train as
// one process that has all micro-batches.
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "pipeline/training.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

void expect_same_in_layout(const PipelineCase& training, int pp) {
  const Values alone = train_alone(training);
  std::mutex mutex;
  std::set<std::string> seen;
  const std::string layout = training.model + " on " + std::to_string(training.dp) + " x " +
                             std::to_string(training.tp) + " x " + std::to_string(pp) + " ranks, " + training.schedule +
                             ", " + training.sharding;
  run_threads(training.dp * training.tp * pp, [&](const World& world) {
    const Values found = train_in_layout(training, world);
    const auto [difference, name] = largest_difference(found, alone);
    require(difference <= tolerance_of(training),
            layout + ": " + name + " differs by " + std::to_string(difference * 1e6) + "e-6");
    const std::lock_guard lock(mutex);
    for (const auto& entry : found) seen.insert(entry.first);
  });
  for (const auto& entry : alone) {
    const bool is_of_shards = training.sharding != "ddp" && entry.first.starts_with("gradient");
    const bool is_parameter = entry.first.find("running") == std::string::npos;
    if (!is_of_shards && is_parameter) EXPECT_TRUE(seen.contains(entry.first)) << layout << ": " << entry.first;
  }
}

TEST(PipelineLayouts, CopiesOfStages) {
  expect_same_in_layout({.model = "gpt", .num_steps = 3, .dp = 2}, 2);
  expect_same_in_layout({.model = "gpt2", .schedule = "zb-h1", .num_micro_batches = 6, .num_steps = 3, .dp = 2}, 2);
}

TEST(PipelineLayouts, ShardsOfStages) {
  expect_same_in_layout({.model = "gpt", .num_steps = 3, .dp = 2, .sharding = "full_shard"}, 2);
  expect_same_in_layout({.model = "gpt2", .num_steps = 3, .dp = 2, .sharding = "shard_grad_op"}, 2);
}

TEST(PipelineLayouts, CutLayersInStages) {
  expect_same_in_layout({.model = "gpt", .num_steps = 3, .tp = 2}, 2);
  expect_same_in_layout({.model = "gpt2", .num_steps = 3, .tp = 2}, 2);
}

TEST(PipelineLayouts, ThreeDimensions) {
  expect_same_in_layout({.model = "gpt", .num_steps = 3, .dp = 2, .tp = 2}, 2);
  expect_same_in_layout({.model = "gpt2", .num_steps = 3, .dp = 2, .tp = 2, .sharding = "full_shard"}, 2);
}

}  // namespace
}  // namespace tessera::testing
