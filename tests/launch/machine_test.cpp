#include <tessera/launch/machine.h>

#include <gtest/gtest.h>

#include <sched.h>

#include <thread>

#include "support/temporary_folder.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

TEST(Machine, SeesTheProcessorsOfItsAffinityMask) {
  // A thread of its own: the mask is not given back.
  std::thread([] {
    const int last = allowed_cpus().back();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(allowed_cpus(), std::vector<int>{last});
    EXPECT_EQ(num_allowed_cores(), 1);
  }).join();
}

TEST(Machine, CountsGpusThatAreVisible) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(num_gpus(nullptr, folder.path() / "no_driver"), 0);
  for (const char* gpu : {"a", "b", "c"}) fs::create_directory(folder.path() / gpu);
  EXPECT_EQ(num_gpus(nullptr, folder.path()), 3);
  EXPECT_EQ(num_gpus("0,2", folder.path()), 2);
  EXPECT_EQ(num_gpus("0,1,2,3,4", folder.path()), 3);
  EXPECT_EQ(num_gpus("", folder.path()), 0);
  EXPECT_EQ(num_gpus("-1", folder.path()), 0);
}

TEST(Machine, CountsNumaNodesWithProcessors) {
  const testing::TemporaryFolder folder;
  for (const char* name : {"node0", "node1", "node2", "power"}) fs::create_directory(folder.path() / name);
  std::ofstream(folder.path() / "node0" / "cpulist") << "0-3\n";
  std::ofstream(folder.path() / "node1" / "cpulist") << "4-7\n";
  std::ofstream(folder.path() / "node2" / "cpulist") << "\n";  // memory alone
  EXPECT_EQ(num_numa_nodes(folder.path()), 2);
}

}  // namespace
}  // namespace tessera::launch
