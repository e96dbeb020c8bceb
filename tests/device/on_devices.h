#pragma once

#include <tessera/comm/world.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>

#include "support/tested_device.h"

namespace tessera::testing {

/// A test on the devices that CMake chose, with the simulated backend where NCCL is on real ones.
class DeviceTest : public ::testing::Test {
 public:
  /// Kernels and collectives begin late, each stream by its own chance.
  static void delay(std::uint64_t seed) { tested::delay(seed, std::chrono::microseconds(100)); }

 protected:
  DeviceTest() {
    tested::reset();
    tested::connect();
  }
  ~DeviceTest() override {
    tested::reset();
    try {
      tested::synchronise();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a test of failures has seen it
    }
  }
};

/// Ends the test as skipped where the machine has fewer devices, by an exception that GoogleTest knows.
inline void need_devices(int count) {
  if (count <= tested::num_devices()) return;
  const std::string reason =
      "needs " + std::to_string(count) + " devices, the machine has " + std::to_string(tested::num_devices());
  [&] { GTEST_SKIP() << reason; }();
  throw ::testing::AssertionException(
      ::testing::TestPartResult(::testing::TestPartResult::kSkip, __FILE__, __LINE__, reason.c_str()));
}

/// Ranks that are threads, each with the device of its number as the current one.
inline void on_devices(int num_ranks, const std::function<void(const World&, const at::Device&)>& run,
                       const WorldOptions& options = {}) {
  need_devices(num_ranks);
  run_threads(
      num_ranks,
      [&](const World& world) {
        run(world, world.device());
        tested::synchronise();
      },
      options);
}

/// The same, with a stream of the program's own as the current one.
inline void on_own_streams(int num_ranks, const std::function<void(const World&, const at::Device&)>& run) {
  on_devices(num_ranks, [&](const World& world, const at::Device& device) {
    const c10::StreamGuard own(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device));
    run(world, device);
  });
}

}  // namespace tessera::testing
