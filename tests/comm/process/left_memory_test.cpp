// Ranks end at different times: what they have in common stays with those who still use it.
#include <tessera/comm/group_memory.h>
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <thread>

#include "comm/process/roles.h"
#include "support/require.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr std::size_t kLeftBytes = 100'000;

TEST(CommonMemoryOfProcesses, OutlivesTheProcessThatMadeIt) {
  const TemporaryFolder folder;
  expect_success(job_of(3, "left_memory", {folder.file("rank 0 has left")}));
}

void wait_for(const std::filesystem::path& file) {
  for (int i = 0; !std::filesystem::exists(file); ++i) {
    require(i < 3000, "rank 0 does not leave");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

/// Arguments: a file that says that rank 0 has left its world.
void check_left_memory(const Arguments& arguments) {
  std::optional<World> world = init(WorldOptions().backend("shm"));
  std::optional<GroupMemory> memory = GroupMemory::make(world->comm(), kLeftBytes);
  require(memory.has_value(), "no memory in common");
  const std::span<std::byte> bytes(memory->data(), kLeftBytes);
  if (world->rank() == 0) std::ranges::fill(bytes, std::byte{7});
  world->comm().barrier();
  if (world->rank() == 0) {
    memory.reset();
    world.reset();
    std::ofstream(arguments.at(0)) << "left";
    return;
  }
  wait_for(arguments.at(0));
  const auto is_kept = [](std::byte byte) { return byte == std::byte{7}; };
  require(std::ranges::all_of(bytes, is_kept), "the bytes went with rank 0");
}

}  // namespace tessera::testing
