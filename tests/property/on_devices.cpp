// Makes programs of property_programs_on_devices find simulated devices, and a backend for them.
#include <tessera/comm/device_backends.h>

#include <chrono>

#include "support/sim_device/sim_backend.h"
#include "support/sim_device/sim_device.h"

namespace tessera::testing {
namespace {

[[maybe_unused]] const bool is_registered = [] {
  sim::settings().delay_seed = 1;
  sim::settings().longest_delay = std::chrono::microseconds(20);
  comm::register_device_backend(
      sim::kSim, [](const comm::DeviceGroup& group) { return sim::make_sim_backend(group.connect_cpu()); });
  return true;
}();

}  // namespace
}  // namespace tessera::testing
