#include <tessera/comm/memory_scope.h>
#include <tessera/comm/world.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/require.h"

namespace tessera {
namespace {

using testing::require;

TEST(MemoryScope, PutsTheTensorsOfItsThreadIntoTheGroupsMemory) {
  run_threads(2, [](const World& world) {
    const auto is_in_group = [&] { return world.comm().is_zero_copy(at::ones({1000})); };
    require(!is_in_group(), "before");
    at::Tensor inside;
    {
      const MemoryScope scope(world.comm());
      require(is_in_group(), "inside");
      bool elsewhere = true;
      std::thread([&] { elsewhere = is_in_group(); }).join();
      require(!elsewhere, "on another thread");
      {
        const MemoryScope nested(world.comm());
        require(is_in_group(), "nested");
      }
      require(is_in_group(), "after the nested one");
      inside = at::full({1000}, 3.0);
    }
    require(!is_in_group(), "after");
    // The tensor outlives the scope, and may grow.
    inside.resize_({5000});
    require(inside[999].item<double>() == 3, "kept");
  });
}

}  // namespace
}  // namespace tessera
