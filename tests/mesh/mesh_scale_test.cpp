#include <tessera/mesh/device_mesh.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <fstream>

#include "support/sanitized.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kLimit = std::chrono::milliseconds(100) * testing::kSanitizerSlowdown;

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void use(const Communicator& comm) {
  auto tensor = at::ones({16});
  comm.all_reduce(tensor);
}

/// LibTorch's own first steps (dispatch tables, allocator) are not what is measured.
void warm_up() { use(fake_world(0, 2).comm().split({0, 1})); }

TEST(MeshScale, FourAxesOverSixteenThousandRanksAreCheap) {
  warm_up();
  const auto bytes_before = resident_bytes();
  const auto start = std::chrono::steady_clock::now();

  const auto world = fake_world(12345, 16384);
  const DeviceMesh mesh(world, {{"pp", 8}, {"dp", 64}, {"cp", 4}, {"tp", 8}});
  for (const auto& axis : mesh.axes()) {
    use(mesh[axis.name].comm());
  }
  EXPECT_EQ(fake_traffic(world).num_groups, 4U);
  use(mesh.sub({"dp", "cp"}).comm());
  use(mesh.sub({"pp", "dp", "cp"}).comm());
  use(mesh.comm());
  EXPECT_EQ(fake_traffic(world).num_groups, 7U);

  EXPECT_LT(std::chrono::steady_clock::now() - start, kLimit);
  EXPECT_LT(resident_bytes() - bytes_before, 20 << 20);
  EXPECT_EQ(mesh.coordinates(), (std::vector<int>{6, 1, 3, 1}));
}

TEST(MeshScale, RankZeroLooksForWarningsAsCheaply) {
  const auto start = std::chrono::steady_clock::now();
  const DeviceMesh mesh(fake_world(0, 16384), {{"pp", 8}, {"dp", 64}, {"cp", 4}, {"tp", 8}});
  EXPECT_TRUE(mesh.layout_warnings().empty());
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLimit);
}

}  // namespace
}  // namespace tessera
