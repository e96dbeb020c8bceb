// Trainings on devices with ranks as processes, each with a device of its own.
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "device/on_devices.h"
#include "device/same_values.h"
#include "parity/sharded.h"
#include "support/process_roles.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

/// BACKEND WAY MODEL VARIANT: as one process on the CPU. WAY is "copies" or "shards".
void check_parity(const Arguments& arguments) {
  tested::connect();
  const World world = init(WorldOptions().backend(arguments.at(0)));
  require(world.device() == tested::device(world.rank()), "the device of this rank's place on the node");
  DeviceTest::delay(static_cast<std::uint64_t>(world.rank() + 1));
  ParityCase parity{.model = arguments.at(2), .optimizer = "sgd", .num_ranks = world.size()};
  const State expected = train_alone(parity);
  parity.device_type = tested::kDevice;
  parity.least_tolerance = at_least_of_kernels(0);
  const auto train = arguments.at(1) == "copies" ? train_distributed : train_sharded;
  require_equal(train(parity, arguments.at(3), world.comm()), expected, parity, arguments.at(3));
  tested::synchronise();
}

class DeviceProcesses : public DeviceTest {};

TEST_F(DeviceProcesses, TrainCopiesAsOneProcess) {
  need_devices(2);
  for (const std::string backend : {"shm", "gloo"}) {
    for (const std::string variant : {"plain", "find unused", "reproducible"}) {
      expect_success(job_of(2, "parity", {backend, "copies", "gpt", variant}));
    }
  }
}

TEST_F(DeviceProcesses, TrainShardsAsOneProcess) {
  need_devices(2);
  for (const std::string backend : {"shm", "gloo"}) {
    for (const std::string variant : {"plain", "grad op", "orig params"}) {
      expect_success(job_of(2, "parity", {backend, "shards", "gpt", variant}));
    }
  }
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  return tessera::testing::run_tests_or_role(argc, argv, {{"parity", tessera::testing::check_parity}});
}
