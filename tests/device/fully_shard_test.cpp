#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/shard/stream_order.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "device/on_devices.h"
#include "device/parity.h"
#include "device/same_bits.h"
#include "device/same_values.h"
#include "parity/sharded.h"
#include "support/error_message.h"
#include "support/require_tensors.h"

// Shards on devices: parameters are gathered on streams, and their memory is used again while kernels are under way.

namespace tessera::testing {
namespace {

using at::Tensor;

class ShardsOnDevices : public DeviceTest {};
class ShardedParityOnDevices : public DeviceTest, public ::testing::WithParamInterface<std::string> {};

/// Each way of sharding ends with the weights of one process that trains on the CPU.
TEST_P(ShardedParityOnDevices, TrainsAsOneProcess) {
  expect_parity({.model = GetParam(), .optimizer = "adamw", .dtype = torch::kDouble, .micro_batches = 2},
                sharded_variants(), train_sharded);
}

TEST_F(ShardsOnDevices, TrainOnAStreamOfTheProgram) {
  expect_parity({.optimizer = "adamw", .micro_batches = 2, .num_steps = 5}, sharded_variants(), train_sharded,
                ProgramStream::kItsOwn);
}

INSTANTIATE_TEST_SUITE_P(Models, ShardedParityOnDevices, ::testing::Values("gpt", "conv", "lstm", "function"));

/// Layers that are large beside what is between them.
struct Tower : torch::nn::Module {
  static constexpr std::int64_t kWidth = 64;
  static constexpr int kNumLayers = 6;
  Tower() {
    for (int i = 0; i < kNumLayers; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    fill_by_formula(*this);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers;
};

FsdpOptions tower_options() { return FsdpOptions().auto_wrap(wrap_by_size(1000)); }

/// However far the host runs ahead, a device holds the units that it uses and those that come next.
TEST_F(ShardsOnDevices, HoldFewUnitsThoughTheHostRunsAhead) {
  if (!tested::kSimulated) GTEST_SKIP() << "needs kernels that take as long as the test says";
  using namespace std::chrono_literals;  // NOLINT
  for (const bool limits : {true, false}) {
    std::size_t peak = 0;
    on_devices(2, [&](const World& world, const at::Device& device) {
      const auto model = std::make_shared<Tower>();
      model->to(device);
      const auto sharded = fully_shard(model, world, tower_options().limit_all_gathers(limits));
      const std::size_t before = tested::bytes_in_use(device.index());
      const Tensor input = torch::ones({2, Tower::kWidth}, device);
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 2; ++i) model->forward(input);  // the order is learnt
      tested::synchronise();
      world.comm().barrier();
      if (world.rank() == 0) tested::kernels_take([](auto, auto) { return 2ms; });
      world.comm().barrier();
      tested::reset_peak_bytes(device.index());
      model->forward(input);
      tested::synchronise();
      if (world.rank() == 0) peak = tested::peak_bytes(0) - before;
    });
    tested::reset();
    const std::size_t unit_bytes = (Tower::kWidth * Tower::kWidth + Tower::kWidth) * sizeof(float);
    if (limits) {
      EXPECT_LT(peak, 3 * unit_bytes);
    }
    EXPECT_GE(peak, 2 * unit_bytes) << "prefetch";
  }
}

TEST_F(ShardsOnDevices, NeverWaitForTheDeviceInAStep) {
  on_devices(2, [&](const World& world, const at::Device& device) {
    const auto model = std::make_shared<Tower>();
    model->to(device);
    const auto sharded = fully_shard(model, world, tower_options());
    torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.01));
    const Tensor input = torch::ones({2, Tower::kWidth}, device);
    const auto step = [&] {
      optimizer.zero_grad();
      model->forward(input).square().mean().backward();
      optimizer.step();
    };
    for (int i = 0; i < 3; ++i) step();
    world.comm().barrier();
    tested::require_no_host_waits("a sharded step", [&] {
      for (int i = 0; i < 3; ++i) step();
    });
    world.comm().barrier();
  });
}

/// The host waits once, for the norm itself.
TEST_F(ShardsOnDevices, AreClippedWhereTheyAre) {
  const auto clipped = [](const World& world, const at::Device& device, std::optional<std::uint64_t>* waits) {
    const auto model = std::make_shared<Tower>();
    model->to(device);
    const auto sharded = fully_shard(model, world, tower_options());
    model->forward(formula({2, Tower::kWidth}, world.rank(), torch::kFloat).to(device)).square().sum().backward();
    world.comm().barrier();  // all ranks count together
    const auto before = tested::num_host_waits();
    const double norm = clip_grad_norm(sharded, 0.1);
    world.comm().barrier();
    if (waits && before) *waits = tested::num_host_waits().value_or(0) - *before;
    world.comm().barrier();
    torch::optim::SGD(sharded.parameters(), 0.1).step();
    State state;
    for (const auto& [name, value] : sharded.full_state_dict()) state[name] = value.cpu();
    state["norm"] = torch::tensor(norm, torch::kDouble);
    return state;
  };
  State expected;
  run_threads(2, [&](const World& world) {
    State found = clipped(world, at::kCPU, nullptr);
    if (world.rank() == 0) expected = std::move(found);
  });
  on_devices(2, [&](const World& world, const at::Device& device) {
    std::optional<std::uint64_t> waits;
    require_equal(clipped(world, device, &waits), expected, ParityCase{.dtype = torch::kFloat}, "clipped");
    require(!waits || *waits <= 2, "each rank waits once");
  });
}

bool is_output(const Tensor& found, const Tensor& expected) {
  return torch::allclose(found.cpu(), expected, 1e-5, at_least_of_kernels(1e-8));
}

/// A program may compute on a stream of its own: what is gathered must not be overwritten while that reads it.
TEST_F(ShardsOnDevices, AreReadOnOtherStreams) {
  delay(7);
  on_devices(2, [&](const World& world, const at::Device& device) {
    const auto expected = std::make_shared<Tower>();
    const auto model = std::make_shared<Tower>();
    model->to(device);
    const auto sharded = fully_shard(model, world, tower_options());
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::Stream side = guard.getNewStream(device);
    const Tensor input = torch::ones({2, Tower::kWidth});
    for (int i = 0; i < 3; ++i) {
      Tensor output;
      {
        order_streams(*current_stream(device), side);
        const c10::StreamGuard on_side(side);
        const torch::NoGradGuard no_grad;
        output = model->forward(input.to(device));
        require(is_output(output, expected->forward(input)), "on a side stream");
      }
      model->forward(input.to(device)).sum().backward();
      require(is_output(output, expected->forward(input)), "the values stay");
    }
  });
}

/// Two streams that nothing orders among themselves: a unit is gathered on one of them, and both use it.
TEST_F(ShardsOnDevices, AreReadOnTwoStreamsAtOnce) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    const auto strategy = seed % 2 == 0 ? ShardingStrategy::kFullShard : ShardingStrategy::kShardGradOp;
    delay(seed);
    on_devices(2, [&](const World& world, const at::Device& device) {
      const auto expected = std::make_shared<Tower>();
      const auto model = std::make_shared<Tower>();
      model->to(device);
      const auto sharded = fully_shard(model, world, tower_options().strategy(strategy));
      const c10::impl::VirtualGuardImpl guard(device.type());
      const std::array<c10::Stream, 2> sides{guard.getNewStream(device), guard.getNewStream(device)};
      std::vector<Tensor> inputs;
      for (int i = 0; i < 2; ++i) inputs.push_back(formula({2, Tower::kWidth}, i, torch::kFloat));
      for (int step = 0; step < 3; ++step) {
        std::vector<Tensor> outputs;
        for (int i = 0; i < 2; ++i) {
          const auto place = static_cast<std::size_t>(i);
          const Tensor input = inputs[place].to(device);
          order_streams(*current_stream(device), sides[place]);
          input.record_stream(sides[place]);
          const c10::StreamGuard on_side(sides[place]);
          outputs.push_back(model->forward(input));
        }
        for (const c10::Stream& side : sides) order_streams(side, *current_stream(device));
        (outputs[0].square().sum() + outputs[1].square().sum()).backward();
        for (const c10::Stream& side : sides) order_streams(side, *current_stream(device));
        for (std::size_t i = 0; i < 2; ++i) {
          require(is_output(outputs[i], expected->forward(inputs[i])), "on two streams");
        }
      }
    });
  }
}

/// The same bits however late which stream is.
void expect_bits_without_chance(int num_ranks, int num_delays) {
  const ParityCase training{
      .optimizer = "adamw", .num_ranks = num_ranks, .device_type = tested::kDevice, .num_steps = 3};
  expect_same_bits(num_ranks, num_delays,
                   [&](const World& world) { return train_sharded(training, "plain", world.comm()); });
}

class ShardsOnDevicesSlow : public DeviceTest {};

TEST_F(ShardsOnDevices, KeepTheirBitsOnTwoRanks) { expect_bits_without_chance(2, kFewDelays); }
TEST_F(ShardsOnDevices, KeepTheirBitsOnFourRanks) { expect_bits_without_chance(4, kFewDelays); }
TEST_F(ShardsOnDevicesSlow, KeepTheirBitsOnTwoRanks) { expect_bits_without_chance(2, kManyDelays); }
TEST_F(ShardsOnDevicesSlow, KeepTheirBitsOnFourRanks) { expect_bits_without_chance(4, kManyDelays); }

}  // namespace
}  // namespace tessera::testing
