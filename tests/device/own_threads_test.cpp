#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/comm/make_observer.h>
#include <tessera/comm/world.h>
#include <tessera/data_parallel/synchroniser.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/train/training_state.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "device/on_devices.h"
#include "device/scripted_kernels.h"
#include "support/require.h"
#include "support/sim_device/sim_device.h"
#include "support/temporary_folder.h"

// What threads of the library ask of a device while the program's thread trains on it. Note [Threads that ask devices]

namespace tessera::testing {
namespace {

using at::Tensor;

class OwnThreads : public DeviceTest {};

/// No thread asks for a device while its current device is another one.
void expect_asked_where_they_are(const std::function<void(const World&, const at::Device&)>& run) {
  const auto before = sim::counts().num_calls_from_elsewhere;
  on_devices(2, run);
  EXPECT_EQ(sim::counts().num_calls_from_elsewhere - before, 0U);
}

TEST_F(OwnThreads, FollowCallsOnTheirDevice) {
  expect_asked_where_they_are([](const World& world, const at::Device& device) {
    Tensor sum = torch::ones({4}, device);
    Gate gate(sum);
    world.comm().all_reduce(sum);
    gate.open();
    const auto is_over = [&] { return world.comm().recent_calls().back().state != CallState::kStarted; };
    while (!is_over()) std::this_thread::yield();
    require(world.comm().recent_calls().back().state == CallState::kDone, "the call is done");
  });
}

TEST_F(OwnThreads, WaitForCopiesOfSavesOnTheirDevice) {
  const TemporaryFolder folder;
  expect_asked_where_they_are([&](const World& world, const at::Device& device) {
    CheckpointFolder checkpoints(folder.path(), world, CheckpointOptions().asynchronous(true));
    const auto model = std::make_shared<torch::nn::LinearImpl>(4, 4);
    model->to(device);
    const ShardedModel sharded = fully_shard(model, world, FsdpOptions().min_num_params(0));  // both ranks write
    TrainingState state(world);
    state.model(sharded);
    Gate gate(sharded.parameters().front());
    checkpoints.save(1, state.capture());
    gate.open();
    require(checkpoints.wait().saved, "saved");
  });
}

/// Each rank's steps go somewhere.
std::unique_ptr<observe::Observer> observer_of(const World& world, const at::Device& device) {
  struct Nowhere : observe::Sink {
    void take(const observe::StepSummary& /*summary*/) override {}
  };
  auto observer = make_observer(world, ObserveOptions().progress("off"), {}, device);
  observer->add_sink(std::make_unique<Nowhere>());
  observer->restart_clock();
  return observer;
}

TEST_F(OwnThreads, ObserveOnTheirDevice) {
  expect_asked_where_they_are([](const World& world, const at::Device& device) {
    const Tensor tensor = torch::ones({4}, device);
    const auto observer = observer_of(world, device);
    Gate gate(tensor);
    observer->record({.step = 1});
    gate.open();
    observer->close();
  });
}

/// A program that ends while its device is busy.
TEST_F(OwnThreads, FreeWhatTheyObserveOnTheirDevice) {
  expect_asked_where_they_are([](const World& world, const at::Device& device) {
    const Tensor tensor = torch::ones({4}, device);
    auto observer = observer_of(world, device);
    Gate gate(tensor);
    observer->record({.step = 1});
    observer->record({.step = 2});  // the end of the first is of the observer's thread alone now
    observer = nullptr;
    gate.open();
  });
}

TEST_F(OwnThreads, SendGradientsOfTheirDevice) {
  expect_asked_where_they_are([](const World& world, const at::Device& device) {
    Tensor weights = torch::ones({4}, device).requires_grad_(true);
    torch::optim::SGD optimizer({weights}, 0.1);
    Synchroniser sync({weights}, world);
    weights.mutable_grad() = torch::ones({4}, device);
    sync.step(optimizer);
    sync.finish(optimizer);
  });
}

}  // namespace
}  // namespace tessera::testing
