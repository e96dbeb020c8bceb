#pragma once

#include <tessera/comm/device_backends.h>
#include <tessera/comm/world.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <gtest/gtest.h>

#include <exception>
#include <functional>

#include "support/sim_device/sim_backend.h"
#include "support/sim_device/sim_device.h"

namespace tessera::testing {

/// A test on simulated devices, with the simulated backend where NCCL is on real ones.
class DeviceTest : public ::testing::Test {
 public:
  /// Kernels and collectives begin late, each stream by its own chance.
  static void delay(std::uint64_t seed) {
    sim::settings().delay_seed = seed;
    sim::settings().longest_delay = std::chrono::microseconds(100);
  }

 protected:
  DeviceTest() {
    comm::register_device_backend(
        sim::kSim, [](const comm::DeviceGroup& group) { return sim::make_sim_backend(group.connect_cpu()); });
  }
  ~DeviceTest() override {
    sim::settings() = sim::Settings();
    try {
      sim::synchronise();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a test of failures has seen it
    }
  }
};

/// Ranks that are threads, each with the device of its number as the current one.
inline void on_devices(int num_ranks, const std::function<void(const World&, const at::Device&)>& run,
                       const WorldOptions& options = {}) {
  run_threads(
      num_ranks,
      [&](const World& world) {
        run(world, world.device());
        sim::synchronise();
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
