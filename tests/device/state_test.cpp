#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/optim/adamw.h>
#include <tessera/shard/stream_order.h>
#include <tessera/train/training_state.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/on_devices.h"
#include "device/same_values.h"
#include "parity/models.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/temporary_folder.h"
#include "train/state/memory_step.h"
#include "train/state/saved_names.h"
#include "train/state/state_part.h"

// Runs on devices that are saved and go on: on a device, on the CPU, or from there.

namespace tessera::testing {
namespace {

using at::Tensor;

class StateOnDevices : public DeviceTest {};

struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(32, 48))),
        dropout(register_module("dropout", torch::nn::Dropout(0.2))),
        last(register_module("last", torch::nn::Linear(48, 8))) {
    fill_by_formula(*this);
  }
  Tensor forward(const Tensor& x) { return last(dropout(torch::tanh(first(x)))); }

  torch::nn::Linear first;
  torch::nn::Dropout dropout;
  torch::nn::Linear last;
};

/// A sharded model that is trained with random numbers.
class Training {
 public:
  Training(const World& world, const at::Device& device, bool draws)
      : device_(device), rank_(world.rank()), model_(on(device, draws)), sharded_(fully_shard(model_, world)) {
    optimizer_.emplace(sharded_.parameters(), optim::AdamWOptions(0.01));
    state_.emplace(world);
    state_->model(sharded_).optimizer(*optimizer_);
  }

  void train(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer_->zero_grad();
      const Tensor input = formula({4, 32}, 3.0 * step + rank_, torch::kFloat).to(device_);
      model_->forward(input).square().mean().backward();
      optimizer_->step();
    }
  }
  State weights() const {
    State found;
    for (const auto& [name, value] : sharded_.full_state_dict()) found[name] = value.cpu();
    return found;
  }
  TrainingState& state() { return *state_; }

 private:
  static std::shared_ptr<Net> on(const at::Device& device, bool draws) {
    const auto model = std::make_shared<Net>();
    model->to(device);
    if (!draws) model->dropout->options.p(0);
    return model;
  }

  at::Device device_;
  int rank_;
  std::shared_ptr<Net> model_;
  ShardedModel sharded_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<TrainingState> state_;
};

void require_bits(const State& found, const State& expected, const std::string& what) {
  for (const auto& [name, value] : expected) require(at::equal(found.at(name), value), what + ": " + name);
}

/// The save is made on one stream, and the memory of what is saved belongs to another, which gives it to the next one.
TEST_F(StateOnDevices, SavesWhatIsFreedOnAStreamOfItsOwn) {
  delay(3);
  const TemporaryFolder folder;
  on_devices(1, [&](const World& world, const at::Device& device) {
    constexpr std::int64_t kElements = 1 << 16;
    CheckpointFolder checkpoints(folder.path(), world, CheckpointOptions().asynchronous(true));
    const c10::Stream owner = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
    const auto filled = [&](double value) {
      const c10::StreamGuard on_owner(owner);
      return at::full({kElements}, value, at::TensorOptions(at::kFloat).device(device));
    };
    RankState state;
    state.slices.push_back(whole_slice("model", "weight", filled(1)));
    order_streams(owner, *current_stream(device));
    checkpoints.save(1, state);
    state.slices.clear();
    const Tensor next = filled(2);
    require(checkpoints.wait().saved, "saved");
    checkpoints.load_newest([&](const SavedStep& saved) {
      std::vector<float> found(kElements);
      saved.read("model", "weight", Slice::whole({kElements}), std::as_writable_bytes(std::span(found)));
      require(std::ranges::all_of(found, [](float value) { return value == 1; }), "what was there when it was saved");
    });
    order_streams(owner, *current_stream(device));
    require(at::equal(next.cpu(), at::full({kElements}, 2.0F)), "and the next one");
  });
}

TEST_F(StateOnDevices, GoesOnWithTheSameBits) {
  for (const bool asynchronous : {false, true}) {
    delay(asynchronous ? 2 : 1);
    const TemporaryFolder folder;
    on_devices(2, [&](const World& world, const at::Device& device) {
      CheckpointFolder checkpoints(folder.path(), world, CheckpointOptions().asynchronous(asynchronous));
      Training run(world, device, /*draws=*/true);
      run.train(0, 3);
      checkpoints.save(3, run.state().capture());
      run.train(3, 6);  // while the bytes are written
      require(checkpoints.wait().saved, "saved");
      const State expected = run.weights();
      at::rand({7}, device);
      Training again(world, device, true);
      const auto loaded = checkpoints.load_newest([&](const SavedStep& saved) {
        const RestoreReport report = again.state().restore(saved);
        require(report.notes.empty(), "nothing differs");
      });
      require(loaded.has_value(), "loaded");
      again.train(3, 6);
      require_bits(again.weights(), expected, "from the device");
    });
  }
}

/// A save is no write: not of an optimizer that would use gradients. Nor is a note of who uses memory, though its
/// operator's schema calls it one: not to parameters that are held whole.
TEST_F(StateOnDevices, SavesBetweenBackwardAndStep) {
  const TemporaryFolder folder;
  on_devices(2, [&](const World& world, const at::Device& device) {
    CheckpointFolder checkpoints(folder.path(), world, CheckpointOptions().asynchronous(true));
    const auto model = std::make_shared<Net>();
    model->to(device);
    const ShardedModel sharded = fully_shard(model, world);
    optim::AdamW optimizer(sharded.parameters(), optim::AdamWOptions(0.01));
    TrainingState state(world);
    state.model(sharded).optimizer(optimizer);
    model->forward(torch::ones({4, 32}, device)).sum().backward();
    model->zero_grad();  // not of the shards, where the optimizer would find what it must not use
    checkpoints.save(1, state.capture());
    require(checkpoints.wait().saved, "gradients were cleared in the model");
    const auto whole = sharded.gather();
    model->first->weight.record_stream(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device));
    sharded.parameters().front().record_stream(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device));
  });
}

/// The device is still busy with the steps before when save() returns.
TEST_F(StateOnDevices, IsCopiedWhileTheHostGoesOn) {
  if (!tested::kSimulated) GTEST_SKIP() << "needs kernels that take as long as the test says";
  using namespace std::chrono_literals;  // NOLINT
  const TemporaryFolder folder;
  on_devices(2, [&](const World& world, const at::Device& device) {
    CheckpointFolder checkpoints(folder.path(), world, CheckpointOptions().asynchronous(true));
    Training run(world, device, /*draws=*/false);
    run.train(0, 2);
    tested::synchronise();
    world.comm().barrier();
    if (world.rank() == 0) tested::kernels_take([](auto, auto) { return 4ms; });
    world.comm().barrier();
    run.train(2, 4);
    c10::Event trained(device.type());
    trained.record(*current_stream(device));
    checkpoints.save(4, run.state().capture());
    require(!trained.query(), "the host does not wait for what is saved");
    world.comm().barrier();
    if (world.rank() == 0) tested::kernels_take({});
    world.comm().barrier();
    run.train(4, 6);  // writes what is being saved
    require(checkpoints.wait().saved, "saved");
    Training again(world, device, false);
    const auto loaded = checkpoints.load_newest([&](const SavedStep& saved) { (void)again.state().restore(saved); });
    require(loaded.has_value(), "loaded");
    again.train(4, 6);
    require_bits(again.weights(), run.weights(), "from the copy");
  });
}

TEST_F(StateOnDevices, GoesOnOnTheCpuAndBack) {
  need_devices(2);
  const TemporaryFolder folder;
  State expected;
  run_threads(2, [&](const World& world) {
    Training run(world, at::kCPU, /*draws=*/false);
    run.train(0, 9);
    State found = run.weights();
    if (world.rank() == 0) expected = std::move(found);
  });
  const auto go_on = [&](const World& world, const at::Device& device, int begin) {
    CheckpointFolder checkpoints(folder.path(), world);
    Training run(world, device, false);
    if (begin > 0) checkpoints.load_newest([&](const SavedStep& saved) { run.state().restore(saved); });
    run.train(begin, begin + 3);
    checkpoints.save(begin + 3, run.state().capture());
    require(checkpoints.wait().saved, "saved");
    return run.weights();
  };
  on_devices(2, [&](const World& world, const at::Device& device) { go_on(world, device, 0); });
  run_threads(2, [&](const World& world) { go_on(world, at::kCPU, 3); });
  on_devices(2, [&](const World& world, const at::Device& device) {
    const State found = go_on(world, device, 6);
    for (const auto& [name, value] : expected) {
      require(same_values(found.at(name), value, kOtherKernelsTrained), "from device to CPU to device: " + name);
    }
  });
}

/// A device's own numbers: of a run without one, and of a run with fewer ranks.
TEST_F(StateOnDevices, SaysWhichRandomNumbersWereNotSaved) {
  TrainingState state;
  MemoryStep step(0);
  step.add(state.capture());
  ASSERT_TRUE(step.has("training", "random/rank/0/" + tested::name()));
  step.drop("training", "random/rank/0/" + tested::name());
  const RestoreReport without = state.restore(step.source());
  ASSERT_EQ(without.notes.size(), 1U);
  expect_parts(without.notes[0], {"no random numbers of " + tested::name(), "rank 0", "go on from where they are"});
}

TEST_F(StateOnDevices, SeedsRanksThatWereNotThereFromRank0) {
  MemoryStep step(0);
  step.add(TrainingState().capture());
  std::vector<Tensor> drawn;
  for (const int rank : {0, 1, 2, 1}) {
    const StateSource source = step.source();
    const auto part = train::accelerator_random_part(rank);
    train::SavedNames names(source.manifest, {});
    part->plan(names);
    source.fill(part->prepare());
    std::vector<std::string> notes;
    part->finish(notes);
    EXPECT_EQ(notes.size(), rank == 0 ? 0U : 1U);
    drawn.push_back(at::rand({4}, tested::device(0)).cpu());
  }
  EXPECT_TRUE(at::equal(drawn[1], drawn[3]));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(at::equal(drawn[i], drawn[(i + 1) % 3]));
}

}  // namespace
}  // namespace tessera::testing
