// Pipelines beside other axes: copies or shards of the stages along "dp", layers that are cut along "tp". They train as
// one process that has all micro-batches: losses, norms, gradients, and the parameters at the end.
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "pipeline/training.h"
#include "support/require.h"
#include "support/slice_elements.h"

namespace tessera::testing {
namespace {

struct LayoutCase {
  PipelineCase training;
  int pp = 1;

  std::string text() const { return training.text() + ", pp " + std::to_string(pp); }
};

/// The largest difference of any rank.
double expect_same_in_layout(const LayoutCase& one) {
  const PipelineCase& training = one.training;
  const Values alone = train_alone(training);
  std::mutex mutex;
  std::map<std::string, at::Tensor> seen;  // of each gradient: which elements
  double largest = 0;
  run_threads(training.dp * training.tp * one.pp, [&](const World& world) {
    const LayoutValues found = train_in_layout(training, world);
    const auto [difference, name] = largest_difference(training, found, alone);
    require(difference <= tolerance_of(training),
            one.text() + ": " + name + " differs by " + std::to_string(difference * 1e6) + "e-6");
    const std::lock_guard lock(mutex);
    largest = std::max(largest, difference);
    for (const GradientPart& part : found.parts) {
      at::Tensor& elements = seen[part.name];
      if (!elements.defined()) elements = at::zeros({part.slice.num_tensor_elements()}, at::kBool);
      elements.index_fill_(0, places_of(part.slice), true);
    }
  });
  for (const auto& [name, value] : alone) {
    if (!name.starts_with("gradient")) continue;
    EXPECT_TRUE(seen.contains(name) && seen.at(name).all().item<bool>()) << one.text() << ": no rank has " << name;
  }
  return largest;
}

constexpr std::array<const char*, 7> kSchedules{"sequential",  "round_robin", "gpipe", "1f1b",
                                                "interleaved", "zb-h1",       "zb-v"};
constexpr std::array<const char*, 3> kShardings{"ddp", "full_shard", "shard_grad_op"};
constexpr std::array<const char*, 2> kModels{"gpt2", "unet"};

/// Every way to make 2, 4 and 8 of three factors, with every schedule; and of all other choices each pair, but for
/// those that gpt2 has too few layers for.
std::vector<LayoutCase> covering_cases() {
  std::vector<LayoutCase> cases;
  std::size_t layout = 0;
  for (const int size : {2, 4, 8}) {
    for (int dp = 1; dp <= size; dp *= 2) {
      for (int tp = 1; dp * tp <= size; tp *= 2, ++layout) {
        for (std::size_t schedule = 0; schedule < kSchedules.size(); ++schedule) {
          const int pp = size / dp / tp;
          const std::size_t optimizer = (layout / 3 + 2 * schedule) % 3;
          PipelineCase one{.model = kModels[(layout + schedule / 2) % 2], .schedule = kSchedules[schedule]};
          const bool has_many_stages = pp == 8 && (one.schedule == "interleaved" || one.schedule == "zb-v");
          if (has_many_stages) one.model = "unet";
          one.uses_adamw = optimizer == 0;
          one.dtype = optimizer == 1 ? torch::kFloat : torch::kDouble;
          one.sharding = kShardings[(layout + schedule) % 3];
          one.dp = dp;
          one.tp = tp;
          one.num_micro_batches = dp * (pp > 2 ? 5 : 3);
          cases.push_back({one, pp});
        }
      }
    }
  }
  return cases;
}

TEST(PipelineLayouts, OfTheSetCoverEveryPair) {
  std::map<std::pair<int, int>, std::set<std::pair<std::string, std::string>>> seen;  // of two choices
  std::map<int, std::set<std::string>> values;
  for (const auto& [training, pp] : covering_cases()) {
    const std::array<std::string, 5> choices{
        std::to_string(training.dp) + " x " + std::to_string(training.tp) + " x " + std::to_string(pp),
        training.schedule, training.sharding, training.model,
        (training.uses_adamw ? "AdamW" : "SGD") + std::string(training.dtype == torch::kDouble ? "" : ", single")};
    for (int i = 0; i < 5; ++i) {
      values[i].insert(choices[static_cast<std::size_t>(i)]);
      for (int j = i + 1; j < 5; ++j) {
        seen[{i, j}].emplace(choices[static_cast<std::size_t>(i)], choices[static_cast<std::size_t>(j)]);
      }
    }
  }
  for (const auto& [places, pairs] : seen) {
    EXPECT_EQ(pairs.size(), values[places.first].size() * values[places.second].size())
        << places.first << " and " << places.second;
  }
  EXPECT_EQ(values[0].size(), 19U);
}

TEST(PipelineLayouts, CopiesOfStages) {
  expect_same_in_layout({{.model = "gpt", .num_steps = 3, .dp = 2}, 2});
  expect_same_in_layout({{.model = "gpt2", .schedule = "zb-h1", .num_micro_batches = 6, .num_steps = 3, .dp = 2}, 2});
}

TEST(PipelineLayouts, ShardsOfStages) {
  expect_same_in_layout({{.model = "gpt", .num_steps = 3, .dp = 2, .sharding = "full_shard"}, 2});
  expect_same_in_layout({{.model = "unet", .num_steps = 3, .dp = 2, .sharding = "shard_grad_op"}, 2});
}

TEST(PipelineLayouts, CutLayersInStages) {
  expect_same_in_layout({{.model = "gpt", .num_steps = 3, .tp = 2}, 2});
  expect_same_in_layout({{.model = "unet", .num_steps = 3, .tp = 2}, 2});
}

TEST(PipelineLayouts, ThreeDimensions) {
  expect_same_in_layout({{.model = "gpt", .num_steps = 3, .dp = 2, .tp = 2}, 2});
  expect_same_in_layout({{.model = "gpt2", .num_steps = 3, .dp = 2, .tp = 2, .sharding = "full_shard"}, 2});
}

class PipelineLayoutsSlow : public ::testing::TestWithParam<int> {};

/// The cases of one schedule.
TEST_P(PipelineLayoutsSlow, TrainAsOneProcess) {
  double largest = 0;
  double largest_of_single = 0;
  int count = 0;
  for (const LayoutCase& one : covering_cases()) {
    if (one.training.schedule != kSchedules[static_cast<std::size_t>(GetParam())]) continue;
    double& its = one.training.dtype == torch::kDouble ? largest : largest_of_single;
    try {
      its = std::max(its, expect_same_in_layout(one));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ++count;
  }
  std::printf("%d layouts; the largest difference is %.1e in double, %.1e in single precision\n", count, largest,
              largest_of_single);
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineLayoutsSlow, ::testing::Range(0, static_cast<int>(kSchedules.size())),
                         [](const auto& test) {
                           std::string name = kSchedules[static_cast<std::size_t>(test.param)];
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera::testing
