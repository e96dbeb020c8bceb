#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/deferred_init.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/on_devices.h"
#include "device/same_values.h"
#include "parity/models.h"
#include "parity/training.h"
#include "support/require.h"

// How a sharded model comes to its device, and in which types it computes there.

namespace tessera::testing {
namespace {

using at::Tensor;

class ShardedModelsOnDevices : public DeviceTest {};

constexpr std::int64_t kWidth = 64;

struct Storey : torch::nn::Module {
  Storey()
      : linear(register_module("linear", torch::nn::Linear(kWidth, kWidth))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        scale(register_buffer("scale", torch::full({kWidth}, 0.75))) {}
  Tensor forward(const Tensor& x) { return torch::tanh(norm(linear(x.to(linear->weight.scalar_type()))) * scale); }

  torch::nn::Linear linear;
  torch::nn::LayerNorm norm;
  Tensor scale;
};

/// Layers that are large beside what is between them, with buffers and with parameters that stay whole.
struct Storeys : torch::nn::Module {
  Storeys() {
    for (int i = 0; i < 6; ++i) all->push_back(std::make_shared<Storey>());
    register_module("all", all);
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *all) x = block->as<Storey>()->forward(x);
    return x;
  }
  torch::nn::ModuleList all;
};

FsdpOptions options_of_storeys() { return FsdpOptions().auto_wrap(wrap_by_size(1000)).min_num_params(100); }

std::shared_ptr<Storeys> make_storeys(bool without_bytes) {
  static std::mutex one_at_a_time;  // ranks are threads and share the generator
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(7);
  std::optional<DeferredInit> no_bytes;
  if (without_bytes) no_bytes.emplace();
  return std::make_shared<Storeys>();
}

State train(const World& world, const at::Device& device, const std::shared_ptr<Storeys>& model,
            const FsdpOptions& options) {
  const auto sharded = fully_shard(model, world, options);
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor input = formula({8, kWidth}, 3.0 * step + world.rank(), torch::kFloat).to(device);
    model->forward(input).to(at::kFloat).square().mean().backward();
    optimizer.step();
  }
  State found;
  for (const auto& [name, value] : sharded.full_state_dict()) found[name] = value.cpu();
  return found;
}

/// Weights and buffers of rank 0 on the CPU, which every rank on a device then has.
void expect_bits_of_the_cpu(const FsdpOptions& options,
                            const std::function<std::shared_ptr<Storeys>(const at::Device&)>& make,
                            double tolerance = kOtherKernelsTrained) {
  State expected;
  run_threads(2, [&](const World& world) {
    const State found = train(world, at::kCPU, make_storeys(false), FsdpOptions(options).device(std::nullopt));
    if (world.rank() == 0) expected = found;
  });
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    DeviceTest::delay(seed);
    on_devices(2, [&](const World& world, const at::Device& device) {
      FsdpOptions here(options);
      if (options.device()) here.device(device);
      const State found = train(world, device, make(device), here);
      require_equal(found.size(), expected.size(), "tensors");
      for (const auto& [name, value] : expected) require(same_values(found.at(name), value, tolerance), name);
    });
  }
}

TEST_F(ShardedModelsOnDevices, ComputeInTheTypesOfTheOptions) {
  for (const bool keeps : {false, true}) {
    const auto options = options_of_storeys()
                             .param_dtype(torch::kBFloat16)
                             .reduce_dtype(keeps ? torch::kBFloat16 : torch::kFloat)
                             .keep_low_precision_grads(false)
                             .buffer_dtype(keeps ? torch::kFloat : torch::kBFloat16);
    const auto make = [](const at::Device& device) {
      auto model = make_storeys(false);
      model->to(device);
      return model;
    };
    // A gradient near nothing may have either sign in bfloat16, and AdamW then makes a whole step either way.
    expect_bits_of_the_cpu(options, make, 0.5);
  }
}

TEST_F(ShardedModelsOnDevices, GoThereUnitByUnit) {
  for (const bool without_bytes : {false, true}) {
    expect_bits_of_the_cpu(options_of_storeys().device(tested::device()),
                           [&](const at::Device& /*device*/) { return make_storeys(without_bytes); });
  }
}

TEST_F(ShardedModelsOnDevices, ForgetGradientsOfBefore) {
  expect_bits_of_the_cpu(options_of_storeys().device(tested::device()), [&](const at::Device& /*device*/) {
    auto model = make_storeys(false);
    model->forward(torch::ones({2, kWidth})).sum().backward();
    return model;
  });
}

/// On its way to the device the model takes its shards and a unit there.
TEST_F(ShardedModelsOnDevices, AreNeverWholeOnTheDevice) {
  on_devices(4, [](const World& world, const at::Device& device) {
    const auto model = make_storeys(true);
    tested::reset_peak_bytes(device.index());
    const std::size_t before = tested::peak_bytes(device.index());
    const auto sharded = fully_shard(model, world, options_of_storeys().device(device).init_sync(false));
    tested::synchronise();
    const std::size_t peak = tested::peak_bytes(device.index()) - before;
    const FsdpStatistics statistics = sharded.statistics();
    // Beside that: norms, which are whole, and what memory is rounded up to.
    const std::uint64_t most = statistics.shard_bytes + statistics.largest_unit_bytes + 12000;
    require(peak <= most, std::to_string(peak) + " bytes, at most " + std::to_string(most));
    for (const Tensor& buffer : model->buffers()) require(buffer.device() == device, "buffers are there too");
  });
}

}  // namespace
}  // namespace tessera::testing
