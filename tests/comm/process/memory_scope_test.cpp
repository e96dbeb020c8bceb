// Ranks that are threads reach all memory of each other: only processes show a difference.
#include <tessera/comm/memory_scope.h>
#include <tessera/comm/world.h>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/process/roles.h"
#include "support/require.h"

namespace tessera::testing {

void check_memory_scope(const Arguments& /*arguments*/) {
  const World world = init(WorldOptions().backend("shm"));
  const auto is_in_group = [&] { return world.comm().is_zero_copy(at::ones({1000})); };
  require(!is_in_group(), "before");
  at::Tensor inside;
  {
    const MemoryScope scope(world.comm());
    require(is_in_group(), "inside");
    bool elsewhere = true;
    std::thread([&] { elsewhere = is_in_group(); }).join();
    require(!elsewhere, "on another thread");
    // As oneDNN's kernels do, which would end the process.
    std::thread([] {
      c10::Allocator* const allocator = c10::GetCPUAllocator();
      allocator->raw_deallocate(allocator->raw_allocate(1000));
    }).join();
    {
      const MemoryScope nested(world.comm());
      require(is_in_group(), "nested");
    }
    require(is_in_group(), "after the nested one");
    inside = at::full({1000}, 3.0);
  }
  require(!is_in_group(), "after");
  inside.resize_({5000});  // by the allocator that made it
  require_equal(inside[999].item<double>(), 3, "a tensor should outlive the scope");
  world.comm().barrier();
}

namespace {

TEST(MemoryScope, PutsTheTensorsOfItsThreadIntoTheGroupsMemory) { expect_success(job_of(2, "memory_scope")); }

}  // namespace
}  // namespace tessera::testing
