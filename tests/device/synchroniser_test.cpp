#include <tessera/data_parallel/synchroniser.h>
#include <tessera/shard/stream_order.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
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

/// What a program does around its steps, and until they are over.
struct AroundSteps {
  using Begin = std::function<std::shared_ptr<void>()>;
  static std::shared_ptr<void> nothing() { return nullptr; }

  Begin begin_all = nothing;
  Begin begin_step = nothing;
  int more_steps_of_each_rank = 0;  ///< than of the rank before
};

/// The weights after some steps whose gradients follow from a formula.
Tensor train(const World& world, const at::Device& device, const SynchroniserOptions& options,
             const AroundSteps& around = {}) {
  Tensor weights = at::linspace(-1, 1, 5, at::kDouble).to(device).requires_grad_(true);
  torch::optim::SGD optimizer({weights}, torch::optim::SGDOptions(kRate).momentum(0.9));
  Synchroniser sync({weights}, world, options);
  const auto around_all = around.begin_all();
  for (int step = 0; step < 12 + world.rank() * around.more_steps_of_each_rank; ++step) {
    const auto around_step = around.begin_step();
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

Tensor train_on_cpu(const SynchroniserOptions& options, const AroundSteps& around = {}) {
  Tensor expected;
  run_threads(3, [&](const World& world) {
    const Tensor found = train(world, at::kCPU, options, around);
    if (world.rank() == 0) expected = found;
  });
  return expected;
}

/// Modes in which not the clock decides which gradients an update holds.
std::vector<SynchroniserOptions> modes_of_known_updates() {
  return {SynchroniserOptions(), bounded(0), SynchroniserOptions().mode("local_sgd").period(4)};
}

TEST_F(SynchroniserOnDevices, TrainsAsOnTheCpu) {
  for (const auto& options : modes_of_known_updates()) {
    const Tensor expected = train_on_cpu(options);
    for (const std::uint64_t seed : {1, 2, 3}) {
      delay(seed);
      on_devices(3, [&](const World& world, const at::Device& device) {
        require(at::allclose(train(world, device, options), expected, 0, at_least_of_kernels(1e-12)), text_of(options));
      });
    }
  }
}

/// A stream of the program's for some steps, in order with the one that was its own before.
class OnNextStream {
 public:
  explicit OnNextStream(const c10::Stream& stream) : before_(*current_stream(stream.device())), on_(stream) {
    order_streams(before_, stream);
  }
  ~OnNextStream() { order_streams(*current_stream(before_.device()), before_); }
  OnNextStream(const OnNextStream&) = delete;
  OnNextStream& operator=(const OnNextStream&) = delete;

 private:
  c10::Stream before_;
  c10::StreamGuard on_;
};

std::shared_ptr<void> on_next_stream(const at::Device& device) {
  return std::make_shared<OnNextStream>(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device));
}

void expect_as_on_the_cpu(const Tensor& found, const Tensor& expected, const SynchroniserOptions& options) {
  require(at::allclose(found, expected, 0, at_least_of_kernels(1e-12)), text_of(options));
}

TEST_F(SynchroniserOnDevices, TrainsOnAStreamOfTheProgram) {
  for (const auto& options : modes_of_known_updates()) {
    const Tensor expected = train_on_cpu(options);
    delay(4);
    on_own_streams(3, [&](const World& world, const at::Device& device) {
      expect_as_on_the_cpu(train(world, device, options), expected, options);
    });
  }
}

/// The program does not see when the other thread uses what it has given.
TEST_F(SynchroniserOnDevices, OrdersItsThreadWithEachStreamOfTheProgram) {
  for (const auto& options : modes_of_known_updates()) {
    const Tensor expected = train_on_cpu(options);
    for (const std::uint64_t seed : {1, 2, 3}) {
      delay(seed);
      on_devices(3, [&](const World& world, const at::Device& device) {
        const AroundSteps around{.begin_step = [&] { return on_next_stream(device); }};
        expect_as_on_the_cpu(train(world, device, options, around), expected, options);
      });
    }
  }
}

/// Its thread takes memory of the program's updates for ranks that have ended.
TEST_F(SynchroniserOnDevices, OrdersItsThreadWithRanksThatHaveEnded) {
  for (const auto& options : modes_of_known_updates()) {
    const Tensor expected = train_on_cpu(options, {.more_steps_of_each_rank = 3});
    delay(5);
    on_devices(3, [&](const World& world, const at::Device& device) {
      const AroundSteps around{.begin_all = [&] { return on_next_stream(device); }, .more_steps_of_each_rank = 3};
      expect_as_on_the_cpu(train(world, device, options, around), expected, options);
    });
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
