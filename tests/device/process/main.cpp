// Trainings on simulated devices with ranks as processes, each with a device of its own, as on a machine with GPUs.
#include <tessera/comm/device_backends.h>
#include <tessera/comm/world.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "parity/sharded.h"
#include "support/process_roles.h"
#include "support/require.h"
#include "support/sim_device/sim_backend.h"
#include "support/sim_device/sim_device.h"

namespace tessera::testing {
namespace {

/// BACKEND WAY MODEL VARIANT: as one process on the CPU. WAY is "copies" or "shards".
void check_parity(const Arguments& arguments) {
  comm::register_device_backend(
      sim::kSim, [](const comm::DeviceGroup& group) { return sim::make_sim_backend(group.connect_cpu()); });
  const World world = init(WorldOptions().backend(arguments.at(0)));
  require(world.device() == sim::device(world.rank()), "the device of this rank's place on the node");
  sim::settings().delay_seed = static_cast<std::uint64_t>(world.rank() + 1);
  sim::settings().longest_delay = std::chrono::microseconds(100);
  ParityCase parity{.model = arguments.at(2), .optimizer = "sgd", .num_ranks = world.size()};
  const State expected = train_alone(parity);
  parity.device_type = sim::kSim;
  const auto train = arguments.at(1) == "copies" ? train_distributed : train_sharded;
  require_equal(train(parity, arguments.at(3), world.comm()), expected, parity, arguments.at(3));
  sim::synchronise();
}

TEST(DeviceProcesses, TrainCopiesAsOneProcess) {
  for (const std::string backend : {"shm", "gloo"}) {
    for (const std::string variant : {"plain", "find unused", "reproducible"}) {
      expect_success(job_of(2, "parity", {backend, "copies", "gpt", variant}));
    }
  }
}

TEST(DeviceProcesses, TrainShardsAsOneProcess) {
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
