#include <tessera/comm/device_backends.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdlib>
#include <utility>

#include "support/require.h"
#include "support/sim_device/sim_backend.h"
#include "support/sim_device/sim_device.h"
#include "support/tested_device.h"

namespace tessera::testing::tested {

const c10::DeviceType kDevice = sim::kSim;
const bool kSameKernels = true;
const bool kSimulated = true;

std::string name() { return "sim"; }
int num_devices() { return sim::settings().num_devices; }

void connect() {
  comm::register_device_backend(
      sim::kSim, [](const comm::DeviceGroup& group) { return sim::make_sim_backend(group.connect_cpu()); });
}

void synchronise() { sim::synchronise(); }

void reset() {
  sim::settings() = sim::Settings();
  // Of `tools/on_gpu --simulate --devices N`: what a smaller machine skips.
  if (const char* const devices = std::getenv("TESSERA_SIM_DEVICES")) {
    sim::settings().num_devices = std::stoi(devices);
  }
}

void delay(std::uint64_t seed, std::chrono::microseconds longest) {
  sim::settings().delay_seed = seed;
  sim::settings().longest_delay = longest;
}

void kernels_take(Duration duration) { sim::settings().duration = std::move(duration); }

void require_no_host_waits(const std::string& what, const std::function<void()>& launch) {
  const auto before = sim::counts().num_host_waits;
  launch();
  require_equal(sim::counts().num_host_waits - before, 0, what + ": waits of the host");
}

std::optional<std::uint64_t> num_host_waits() { return sim::counts().num_host_waits; }

std::size_t bytes_in_use(int device) { return sim::bytes_in_use(device); }
std::size_t peak_bytes(int device) { return sim::peak_bytes(device); }
void reset_peak_bytes(int device) { sim::reset_peak_bytes(device); }

}  // namespace tessera::testing::tested
