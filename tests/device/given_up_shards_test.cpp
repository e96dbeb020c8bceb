#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/shard/stream_order.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <cctype>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "device/on_devices.h"
#include "device/same_values.h"
#include "parity/models.h"
#include "parity/training.h"
#include "support/error_message.h"
#include "support/require_tensors.h"

// Shards whose gathers and averages nobody wants any more: after an error, or because the model is gone. What is under
// way then must not meet memory that was freed.

namespace tessera::testing {
namespace {

using at::Tensor;

class GivenUpShards : public DeviceTest {};

struct ShortTower : torch::nn::Module {
  static constexpr std::int64_t kWidth = 64;
  static constexpr std::size_t kNumLayers = 4;
  ShortTower() {
    for (std::size_t i = 0; i < kNumLayers; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    fill_by_formula(*this);
  }
  Tensor forward(Tensor x, std::size_t num_layers = kNumLayers) {
    for (std::size_t i = 0; i < num_layers; ++i) {
      x = torch::tanh(layers[i]->as<torch::nn::Linear>()->forward(x));
      if (i == fails_behind && x.requires_grad()) {
        x.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("a hook of the program's"); });
      }
    }
    return x;
  }
  torch::nn::ModuleList layers;
  std::size_t fails_behind = kNumLayers;  ///< the layer whose output's gradient is refused
};

FsdpOptions one_unit_a_layer() { return FsdpOptions().auto_wrap(wrap_by_size(1000)).min_num_params(0); }

Tensor input_of(const World& world, const at::Device& device) {
  return formula({2, ShortTower::kWidth}, world.rank(), torch::kFloat).to(device);
}

/// Transfers are slower than what the host launches meanwhile.
void slow_transfers() {
  tested::kernels_take([](std::string_view op, auto) {
    const bool is_transfer = std::isupper(static_cast<unsigned char>(op.back())) != 0;  // ALLREDUCE
    return std::chrono::milliseconds(is_transfer ? 5 : 0);
  });
}

/// A step whose backward fails in the second layer, when the averages of those behind it are under way; and one that
/// does not.
State weights_after_a_failure(const World& world, const at::Device& device, bool reproducible) {
  const auto model = std::make_shared<ShortTower>();
  model->to(device);
  auto options = one_unit_a_layer();
  if (reproducible) options.reproducible(true).micro_batches(2);
  const auto sharded = fully_shard(model, world, options);
  torch::optim::SGD optimizer(sharded.parameters(), 0.1);
  const auto loss = [&] { return model->forward(input_of(world, device)).square().sum(); };
  model->fails_behind = 1;
  require(!message_of<std::runtime_error>([&] { loss().backward(); }).empty(), "the hook throws");
  model->fails_behind = ShortTower::kNumLayers;
  optimizer.zero_grad();
  loss().backward();
  optimizer.step();
  State weights;
  const ShortTower before;
  for (const auto& [name, value] : sharded.full_state_dict()) {
    weights[name] = value.cpu();
    require(!torch::equal(weights[name], before.named_parameters()[name]), name + " had a gradient");
  }
  return weights;
}

TEST_F(GivenUpShards, TrainOnAfterABackwardThatFailed) {
  for (const bool reproducible : {false, true}) {
    tested::reset();
    State expected;
    run_threads(2, [&](const World& world) {
      State found = weights_after_a_failure(world, at::kCPU, reproducible);
      if (world.rank() == 0) expected = std::move(found);
    });
    slow_transfers();
    on_devices(2, [&](const World& world, const at::Device& device) {
      require_equal(weights_after_a_failure(world, device, reproducible), expected,
                    ParityCase{.dtype = torch::kFloat, .least_tolerance = at_least_of_kernels(0)}, "weights");
    });
  }
}

/// The unit behind the last that was used is on its way.
TEST_F(GivenUpShards, GoWhileTheyArrive) {
  slow_transfers();
  on_devices(2, [](const World& world, const at::Device& device) {
    const Tensor input = input_of(world, device);
    {
      const auto model = std::make_shared<ShortTower>();
      model->to(device);
      const auto sharded = fully_shard(model, world, one_unit_a_layer());
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 2; ++i) model->forward(input);  // the order is learnt
      model->forward(input, 1);
    }
    torch::ones({1}, device);  // would tell of memory that was freed too early
  });
}

/// What two streams read is freed by an error that one of them meets.
TEST_F(GivenUpShards, AreRefusedWhileAnotherStreamReadsThem) {
  slow_transfers();
  on_devices(2, [](const World& world, const at::Device& device) {
    const auto model = std::make_shared<ShortTower>();
    model->to(device);
    const auto sharded = fully_shard(model, world, one_unit_a_layer().strategy(ShardingStrategy::kShardGradOp));
    const Tensor input = input_of(world, device);
    const Tensor output = model->forward(input);  // all units stay for its backward
    const c10::Stream side = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
    order_streams(*current_stream(device), side);
    input.record_stream(side);
    Tensor on_side;
    {
      const c10::StreamGuard guard(side);
      on_side = model->forward(input);
    }
    auto& layer = *model->layers[0]->as<torch::nn::Linear>();
    layer.weight.set_data(torch::zeros({ShortTower::kWidth, ShortTower::kWidth}, device));
    expect_parts(message_of<c10::Error>([&] { model->forward(input); }), {"was given other memory"});
    torch::ones({1}, device);  // would tell of memory that was freed too early
  });
}

/// A program that gathers by itself, and computes elsewhere.
TEST_F(GivenUpShards, AreReadBehindTheStreamThatGatheredThem) {
  slow_transfers();
  const auto alone = std::make_shared<ShortTower>();
  for (const bool writes_back : {false, true}) {
    on_devices(2, [&](const World& world, const at::Device& device) {
      const torch::NoGradGuard no_grad;
      const auto model = std::make_shared<ShortTower>();
      model->to(device);
      const auto sharded = fully_shard(model, world, one_unit_a_layer());
      const c10::Stream side = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
      Tensor output;
      {
        const auto whole = sharded.gather(GatherOptions().write_back(writes_back));
        const c10::StreamGuard guard(side);
        output = model->forward(input_of(world, device)).cpu();
      }
      const Tensor expected = alone->forward(input_of(world, at::kCPU));
      require(torch::allclose(output, expected, 1e-5, at_least_of_kernels(1e-8)), "on the side");
      torch::ones({1}, device);  // would tell of memory that was freed too early
    });
  }
}

}  // namespace
}  // namespace tessera::testing
