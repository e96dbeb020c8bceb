#include <tessera/optim/autocast.h>
#include <tessera/recompute/recompute.h>
#include <tessera/recompute/save_memory.h>

#include <ATen/Context.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/on_devices.h"
#include "recompute/blocks.h"

// What is computed again on a device: with the random numbers of the device's generator, on autograd's thread for it.

namespace tessera::testing {
namespace {

using at::Tensor;

class RecomputeOnDevices : public DeviceTest {};

struct Blocks : torch::nn::Module {
  Blocks() {
    for (const auto& block : make_blocks(3)) layers->push_back(block);
    register_module("layers", layers);
  }
  Tensor forward(Tensor x, bool recomputed) {
    for (const auto& layer : *layers) {
      const auto block = std::dynamic_pointer_cast<Block>(layer);
      x = call(recomputed, [block](const Tensor& input) { return block->forward(input); }, x);
    }
    return x;
  }
  torch::nn::ModuleList layers;
};

void seed(const at::Device& device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(7);
}

/// The loss, all gradients, and the numbers that the device draws next. `way`: "plain", "recompute", or a strategy.
std::vector<Tensor> computed(const std::string& way, const std::optional<at::ScalarType>& autocast) {
  const at::Device device = tested::device(0);
  const auto model = std::make_shared<Blocks>();
  model->to(device, autocast ? at::kFloat : at::kDouble);
  MemorySaving saving;
  if (way == "standard" || way == "aggressive") saving = save_memory(model, SaveMemoryOptions().strategy(way));
  seed(device);
  const Tensor input = waves({2, 5, 16}).to(model->parameters().front().options());
  Tensor loss;
  {
    const Autocast guard(autocast.value_or(at::kFloat), tested::kDevice);
    loss = model->forward(input, way == "recompute").square().mean();
  }
  loss.backward();
  if (way == "standard" || way == "aggressive") {
    EXPECT_GT(saving.report().num_operators_again, 0);
  }
  std::vector<Tensor> results{loss.detach().cpu()};
  for (const Tensor& parameter : model->parameters()) results.push_back(parameter.grad().cpu());
  results.push_back(at::rand({3}, device).cpu());
  return results;
}

void expect_same(const std::optional<at::ScalarType>& autocast) {
  const auto expected = computed("plain", autocast);
  EXPECT_GT(expected[1].abs().max().item<double>(), 0);
  for (const std::string way : {"recompute", "standard", "aggressive"}) {
    const auto found = computed(way, autocast);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], expected[i]))
          << way << ": result " << i << " differs by " << (found[i] - expected[i]).abs().max().item<double>();
    }
  }
}

TEST_F(RecomputeOnDevices, GivesTheBitsOfAPlainCall) {
  for (const std::uint64_t delays : {1, 2, 3}) {
    delay(delays);
    expect_same(std::nullopt);
  }
}

TEST_F(RecomputeOnDevices, UsesTheAutocastOfTheFirstRun) {
  delay(4);
  expect_same(at::kBFloat16);
}

}  // namespace
}  // namespace tessera::testing
