// Each test must be the first thing that its process does, as it is when CTest runs it.
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <atomic>

#include "support/vector_functions.h"

namespace tessera::testing {
namespace {

TEST(SettleMath, IsDoneBeforeRanksThatAreThreadsCompute) {
  if (!cpu_of_vector_functions()) GTEST_SKIP() << "LibTorch's vector functions are not those that need it";
  std::atomic<int> num_unsettled = 0;
  run_threads(4, [&](const World& /*world*/) { num_unsettled += cpu_of_vector_functions() == -1 ? 1 : 0; });
  EXPECT_EQ(num_unsettled, 0);
}

TEST(SettleMath, IsDoneWithAnyWorld) {
  if (!cpu_of_vector_functions()) GTEST_SKIP() << "LibTorch's vector functions are not those that need it";
  const World world = fake_world(0, 2, 2);
  EXPECT_NE(cpu_of_vector_functions(), -1);
}

}  // namespace
}  // namespace tessera::testing
