#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "device/on_devices.h"
#include "device/same_values.h"
#include "parity/training.h"

// Trainings on devices beside one process that trains on the CPU.

namespace tessera::testing {

enum class ProgramStream { kDefault, kItsOwn };

using TrainOnRanks = std::function<State(const ParityCase&, const std::string& variant, const Communicator&)>;

/// Each variant ends with the weights of one process, whatever the delays.
inline void expect_parity(ParityCase parity, const std::vector<std::string>& variants, const TrainOnRanks& train,
                          ProgramStream stream = ProgramStream::kDefault) {
  need_devices(parity.num_ranks);
  const State expected = train_alone(parity);
  parity.least_tolerance = at_least_of_kernels(0);
  parity.device_type = tested::kDevice;
  std::uint64_t seed = stream == ProgramStream::kDefault ? 1 : 20;
  for (const auto& variant : variants) {
    const auto compare = [&](const World& world, const at::Device& /*device*/) {
      require_equal(train(parity, variant, world.comm()), expected, parity, variant);
    };
    try {
      DeviceTest::delay(seed++);
      stream == ProgramStream::kDefault ? on_devices(parity.num_ranks, compare)
                                        : on_own_streams(parity.num_ranks, compare);
    } catch (const std::exception& error) {
      ADD_FAILURE() << variant << ": " << error.what();
    }
  }
}

}  // namespace tessera::testing
