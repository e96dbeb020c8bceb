#include <tessera/core/error.h>
#include <tessera/mesh/three_d_parallelism.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

namespace tessera {
namespace {

using Counts = std::vector<int>;

double bottleneck(const std::vector<double>& costs, const Counts& counts) {
  double worst = 0;
  std::size_t layer = 0;
  for (int count : counts) {
    double stage = 0;
    for (int i = 0; i < count; ++i) {
      stage += costs[layer++];
    }
    worst = std::max(worst, stage);
  }
  return worst;
}

/// By trying every way to cut.
double least_bottleneck(const std::vector<double>& costs, int num_stages, Counts counts = {}, int used = 0) {
  const int num_left = static_cast<int>(costs.size()) - used;
  if (static_cast<int>(counts.size()) + 1 == num_stages) {
    counts.push_back(num_left);
    return bottleneck(costs, counts);
  }
  double best = std::numeric_limits<double>::infinity();
  const int stages_after = num_stages - static_cast<int>(counts.size()) - 1;
  for (int count = 1; count <= num_left - stages_after; ++count) {
    auto longer = counts;
    longer.push_back(count);
    best = std::min(best, least_bottleneck(costs, num_stages, longer, used + count));
  }
  return best;
}

TEST(EvenLayers, GivesTheRemainderToTheFirstStages) {
  EXPECT_EQ(even_layers(24, 4), (Counts{6, 6, 6, 6}));
  EXPECT_EQ(even_layers(10, 4), (Counts{3, 3, 2, 2}));
  EXPECT_EQ(even_layers(3, 3), (Counts{1, 1, 1}));
  EXPECT_THROW(even_layers(3, 4), ConfigError);
  EXPECT_THROW(even_layers(3, 0), ConfigError);
}

TEST(BalancedLayers, AgreesWithEvenLayersWhenAllCostTheSame) {
  for (int layers = 1; layers <= 30; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      ASSERT_EQ(balanced_layers(std::vector<double>(static_cast<std::size_t>(layers), 1.0), stages),
                even_layers(layers, stages));
    }
  }
}

TEST(BalancedLayers, FindsTheLeastBottleneck) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> costs(1 + random() % 11);
    for (auto& cost : costs) {
      cost = static_cast<double>(random() % 20);
    }
    const int stages = 1 + static_cast<int>(random() % costs.size());
    const auto counts = balanced_layers(costs, stages);
    ASSERT_EQ(static_cast<int>(counts.size()), stages);
    ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), 0), static_cast<int>(costs.size()));
    ASSERT_GE(*std::min_element(counts.begin(), counts.end()), 1);
    ASSERT_EQ(bottleneck(costs, counts), least_bottleneck(costs, stages));
  }
}

TEST(BalancedLayers, GivesFewerLayersToTheStageOfTheCostlyOne) {
  EXPECT_EQ(balanced_layers({1, 1, 1, 1, 1, 4}, 2), (Counts{5, 1}));
}

TEST(BalancedLayers, SpreadsWhatTheBottleneckLeavesFree) {
  // The last layer costs 9 whatever is done; the others must not pile up in front of it.
  EXPECT_EQ(balanced_layers({1, 1, 1, 1, 1, 1, 9}, 3), (Counts{3, 3, 1}));
}

TEST(BalancedLayers, RefusesCostsThatAreNone) {
  EXPECT_THROW(balanced_layers({1, -1}, 1), ConfigError);
  EXPECT_THROW(balanced_layers({1, std::numeric_limits<double>::quiet_NaN()}, 1), ConfigError);
  EXPECT_THROW(balanced_layers({1}, 2), ConfigError);
}

TEST(UnevenLayersNote, SpeaksOnlyOfUnevenStages) {
  EXPECT_EQ(uneven_layers_note({6, 6}), std::nullopt);
  EXPECT_EQ(uneven_layers_note({}), std::nullopt);
  const auto note = uneven_layers_note({3, 3, 2});
  ASSERT_TRUE(note.has_value());
  EXPECT_NE(note->find("3, 3, 2"), std::string::npos) << *note;
}

}  // namespace
}  // namespace tessera
