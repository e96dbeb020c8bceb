// The test must be the first thing that its process does, as it is when CTest runs it.
#include "data_parallel/replicas/replica_threads.h"

#include <gtest/gtest.h>

#include <atomic>

#include "support/vector_functions.h"

namespace tessera::testing {
namespace {

TEST(ReplicaThreads, ComputeAfterMathIsSettled) {
  if (!cpu_of_vector_functions()) GTEST_SKIP() << "LibTorch's vector functions are not those that need it";
  data_parallel::ReplicaThreads threads({at::kCPU, at::kCPU}, 1);
  std::atomic<int> num_unsettled = 0;
  threads.run(2, "test", [&](std::size_t /*replica*/) { num_unsettled += cpu_of_vector_functions() == -1 ? 1 : 0; });
  EXPECT_EQ(num_unsettled, 0);
}

}  // namespace
}  // namespace tessera::testing
