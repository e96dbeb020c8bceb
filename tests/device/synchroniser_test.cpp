#include <tessera/data_parallel/synchroniser.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include <vector>

#include "data_parallel/drill.h"
#include "device/on_devices.h"
#include "device/same_values.h"
#include "support/require.h"

// Synchronisers on devices: another thread of the rank sends what the device computes.

namespace tessera::testing {
namespace {

using at::Tensor;

class SynchroniserOnDevices : public DeviceTest {};

/// The weights after some steps whose gradients follow from a formula.
Tensor train(const World& world, const at::Device& device, const SynchroniserOptions& options) {
  Tensor weights = at::linspace(-1, 1, 5, at::kDouble).to(device).requires_grad_(true);
  torch::optim::SGD optimizer({weights}, torch::optim::SGDOptions(kRate).momentum(0.9));
  Synchroniser sync({weights}, world, options);
  for (int step = 0; step < 12; ++step) {
    weights.mutable_grad() = weights.detach() - Drill::target(world.rank(), step).to(device);
    sync.step(optimizer);
  }
  sync.finish(optimizer);
  require(sync.version() > 0, "updates were made");
  const Tensor mine = weights.detach().cpu();
  const Tensor all = world.comm().all_gather(mine.reshape({1, -1}));
  for (int rank = 0; rank < world.size(); ++rank) {
    require(options.mode() == "local_sgd" ? at::allclose(all[rank], mine) : at::equal(all[rank], mine),
            text_of(options) + ": the same weights on all ranks");
  }
  return mine;
}

TEST_F(SynchroniserOnDevices, TrainsAsOnTheCpu) {
  // Which gradients an update of the other modes holds, the clock decides.
  for (const auto& options : {SynchroniserOptions(), bounded(0), SynchroniserOptions().mode("local_sgd").period(4)}) {
    Tensor expected;
    run_threads(3, [&](const World& world) {
      const Tensor found = train(world, at::kCPU, options);
      if (world.rank() == 0) expected = found;
    });
    for (const std::uint64_t seed : {1, 2, 3}) {
      delay(seed);
      on_devices(3, [&](const World& world, const at::Device& device) {
        require(at::allclose(train(world, device, options), expected, 0, at_least_of_kernels(1e-12)), text_of(options));
      });
    }
  }
}

TEST_F(SynchroniserOnDevices, KeepsRanksEqualThoughSomeAreBehind) {
  for (const auto& options : {bounded(1), bounded(4), asynchronous()}) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      delay(seed);
      on_devices(3, [&](const World& world, const at::Device& device) { train(world, device, options); });
    }
  }
}

}  // namespace
}  // namespace tessera::testing
