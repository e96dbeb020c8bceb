#include "tessera/cpu_binding.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <numeric>

#include <tessera/launch/machine.h>
#include "launcher.h"
#include "support/error_message.h"

namespace tessera::app {
namespace {

using Plan = std::vector<std::vector<int>>;

constexpr const char* kTwoNodes = "node:2 core:4 pu:2";

std::vector<int> first(int count) {
  std::vector<int> cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

TEST(CpuBinding, GivesEachRankWholeCores) {
  EXPECT_EQ(plan_binding_on(kTwoNodes, Binding::kCore, 2, first(16)),
            (Plan{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}));
  EXPECT_EQ(plan_binding_on(kTwoNodes, Binding::kCore, 3, first(16)),
            (Plan{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}}));
}

TEST(CpuBinding, FillsNumaNodesEvenly) {
  const auto plan = plan_binding_on(kTwoNodes, Binding::kNuma, 4, first(16));
  EXPECT_EQ(plan[0], (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(plan[1], plan[0]);
  EXPECT_EQ(plan[2], (std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(plan[3], plan[2]);
}

TEST(CpuBinding, StaysInsideWhatTheLauncherMayUse) {
  EXPECT_EQ(plan_binding_on(kTwoNodes, Binding::kCore, 2, {2, 3, 9}), (Plan{{2, 3}, {9}}));
  EXPECT_EQ(plan_binding_on(kTwoNodes, Binding::kNuma, 2, {10, 11}), (Plan{{10, 11}, {10, 11}}));
}

TEST(CpuBinding, RefusesMoreRanksThanCores) {
  testing::expect_parts(
      testing::message_of<ConfigError>([] { plan_binding_on(kTwoNodes, Binding::kCore, 3, {0, 1, 2}); }),
      {"2 cores", "3 ranks", "bind none"});
}

TEST(CpuBinding, ReachesTheRanks) {
  const auto cpus = launch::allowed_cpus();
  if (launch::num_allowed_cores() < 2) GTEST_SKIP() << "one core cannot be dealt out";
  testing::Launcher launcher(testing::shell_ranks(2, "grep Cpus_allowed_list /proc/self/status", {"--bind", "core"}));
  EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
  ASSERT_EQ(launcher.output_lines().size(), 2U) << launcher.output();
  const Plan plan = plan_binding(Binding::kCore, 2, cpus);
  EXPECT_TRUE(launcher.output_lines()[0].ends_with("\t" + std::to_string(plan[0][0]))) << launcher.output();
  EXPECT_NE(launcher.output_lines()[0].back(), launcher.output_lines()[1].back());
}

}  // namespace
}  // namespace tessera::app
