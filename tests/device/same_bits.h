#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "device/on_devices.h"
#include "device/same_values.h"

// Trainings whose streams are slow and fast by many chances: the bits are the same each time, and the simulated device
// finds no two accesses that nothing orders.

namespace tessera::testing {

constexpr int kFewDelays = 6;     // in every run of the tests
constexpr int kManyDelays = 200;  // in the slow ones

/// What each rank has at the end, by name.
using Found = std::vector<std::map<std::string, at::Tensor>>;

inline void expect_same_bits(int num_ranks, int num_delays,
                             const std::function<std::map<std::string, at::Tensor>(const World&)>& train) {
  need_devices(num_ranks);
  Found expected;
  for (int seed = 0; seed < num_delays; ++seed) {
    tested::delay(static_cast<std::uint64_t>(seed), std::chrono::microseconds(seed == 0 ? 0 : 100));
    Found found(static_cast<std::size_t>(num_ranks));
    on_devices(num_ranks, [&](const World& world, const at::Device& /*device*/) {
      found[static_cast<std::size_t>(world.rank())] = train(world);
    });
    if (seed == 0) {
      expected = std::move(found);
      continue;
    }
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      ASSERT_EQ(found[rank].size(), expected[rank].size());
      for (const auto& [name, value] : expected[rank]) {
        ASSERT_TRUE(same_values(found[rank].at(name), value)) << "seed " << seed << ", rank " << rank << ": " << name;
      }
    }
  }
}

}  // namespace tessera::testing
