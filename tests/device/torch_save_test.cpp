#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>

#include <torch/torch.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>

#include "device/on_devices.h"
#include "device/same_values.h"
#include "parity/models.h"
#include "support/require.h"

// torch::save() of a model on a device copies its parameters by operators, which it does not need on the CPU.

namespace tessera::testing {
namespace {

using at::Tensor;

class SavesOnDevices : public DeviceTest {};

/// With a buffer, which ranks take from rank 0 when a forward begins.
struct Scaled : torch::nn::Module {
  Scaled()
      : first(register_module("first", torch::nn::Linear(6, 4))),
        second(register_module("second", torch::nn::Linear(4, 2))),
        scale(register_buffer("scale", torch::ones({4}))) {
    fill_by_formula(*this);
  }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x) * scale)); }

  torch::nn::Linear first;
  torch::nn::Linear second;
  Tensor scale;
};

/// Some steps, in which rank 0 alone saves where the parameters are whole. Returns the weights that it saved last.
std::string saved_by_one(const World& world, const at::Device& device, const std::optional<FsdpOptions>& options) {
  const auto model = std::make_shared<Scaled>();
  model->to(device);
  std::optional<DistributedModel> ddp;
  std::optional<ShardedModel> sharded;
  if (options) {
    sharded = fully_shard(model, world, *options);
  } else {
    ddp = distribute(model, world);
  }
  torch::optim::SGD optimizer(options ? sharded->parameters() : model->parameters(), 0.1);
  std::string bytes;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor input = formula({8, 6}, 2.0 * step + world.rank(), torch::kFloat).to(device);
    model->forward(input).square().mean().backward();
    optimizer.step();
    std::optional<Whole> whole;
    if (sharded) whole.emplace(*sharded);
    if (world.rank() != 0) continue;
    std::ostringstream file;
    torch::save(model, file);
    bytes = file.str();
  }
  tested::synchronise();
  return bytes;
}

Tensor weights_in(const std::string& bytes) {
  const auto model = std::make_shared<Scaled>();
  auto read = model;
  std::istringstream file(bytes);
  torch::load(read, file, at::kCPU);
  std::vector<Tensor> all;
  for (const Tensor& one : read->parameters()) all.push_back(one.detach().flatten());
  return torch::cat(all);
}

TEST_F(SavesOnDevices, MayBeMadeByOneRankAlone) {
  using Strategy = ShardingStrategy;
  const auto small = FsdpOptions().auto_wrap(wrap_by_size(1)).min_num_params(0);
  for (const auto& options : {std::optional<FsdpOptions>(), std::optional(small),
                              std::optional(FsdpOptions(small).strategy(Strategy::kNoShard))}) {
    std::string on_cpu;
    run_threads(2, [&](const World& world) {
      std::string found = saved_by_one(world, at::kCPU, options);
      if (world.rank() == 0) on_cpu = std::move(found);
    });
    delay(4);
    std::string on_device;
    on_devices(
        2,
        [&](const World& world, const at::Device& device) {
          std::string found = saved_by_one(world, device, options);
          if (world.rank() == 0) on_device = std::move(found);
        },
        WorldOptions().timeout(std::chrono::seconds(10)));
    EXPECT_TRUE(same_values(weights_in(on_device), weights_in(on_cpu), kOtherKernelsTrained));
  }
}

}  // namespace
}  // namespace tessera::testing
