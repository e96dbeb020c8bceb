// Models that are built without ever being whole.
#include <tessera/comm/world.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/thread_memory.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/require_tensors.h"

namespace tessera {
namespace {

using testing::require;

using testing::require_equal;

struct DeferredNet : torch::nn::Module {
  explicit DeferredNet(int num_layers) {
    embedding = register_module("embedding", torch::nn::Embedding(300, 128));
    for (int i = 0; i < num_layers; ++i) {
      layers.emplace_back(register_module("layer" + std::to_string(i), torch::nn::Linear(128, 128)));
    }
    norm = register_module("norm", torch::nn::BatchNorm1d(128));
    const torch::NoGradGuard no_grad;
    for (auto& layer : layers) layer->weight.mul_(0.5);
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embedding(tokens);
    for (auto& layer : layers) x = x + layer(x).tanh();
    return torch::matmul(norm(x), embedding->weight.t());
  }
  torch::nn::Embedding embedding = nullptr;
  std::vector<torch::nn::Linear> layers;
  torch::nn::BatchNorm1d norm = nullptr;
};

/// Ranks that are threads share the generator: one at a time.
std::shared_ptr<DeferredNet> make_net(int num_layers) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(3);
  return std::make_shared<DeferredNet>(num_layers);
}

std::shared_ptr<DeferredNet> make_deferred(int num_layers) {
  const DeferredInit no_bytes;
  return make_net(num_layers);
}

class DeferredModel : public ::testing::TestWithParam<int> {};

TEST_P(DeferredModel, HasTheValuesOfAWholeOne) {
  const auto whole = make_net(4);
  for (const bool init_sync : {true, false}) {
    run_threads(GetParam(), [&](const World& world) {
      const auto net = make_deferred(4);
      require(is_deferred(net->layers[0]->weight), "nothing was deferred");
      const auto sharded = fully_shard(net, world, FsdpOptions().init_sync(init_sync));
      const auto state = sharded.full_state_dict();
      const auto expected = whole->named_parameters();
      require_equal(state.size(), expected.size() + whole->named_buffers().size(), "all tensors");
      for (const auto& [name, value] : state) {
        const auto* parameter = expected.find(name);
        require_equal(value, parameter != nullptr ? *parameter : whole->named_buffers()[name], name);
      }
      net->forward(torch::arange(8)).square().mean().backward();
    });
  }
}

TEST_P(DeferredModel, TakesItsShareAndOneUnitToBuild) {
  run_threads(GetParam(), [](const World& world) {
    intercept::ThreadMemory memory;
    const auto net = make_deferred(12);
    const auto sharded = fully_shard(net, world, FsdpOptions().auto_wrap(wrap_by_type<torch::nn::LinearImpl>()));
    const auto statistics = sharded.statistics();
    const auto unit = static_cast<std::int64_t>(statistics.largest_unit_bytes);
    // Rows that are gathered come from elsewhere than LibTorch's allocator; count them as if all at the worst time.
    const auto found = memory.peak_of_all() + static_cast<std::int64_t>(statistics.peak_gathered_bytes);
    const std::int64_t constant = 16 << 10;  // buffers, and numbers on their way
    const auto bound = static_cast<std::int64_t>(statistics.shard_bytes) + unit + constant;
    require(found <= bound, "found " + std::to_string(found) + " bytes, expected at most " + std::to_string(bound));
    require(world.size() == 1 || bound < static_cast<std::int64_t>(statistics.full_bytes), "the whole would be more");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeferredModel, ::testing::Values(1, 2, 3, 4),
                         [](const auto& one) { return "On" + std::to_string(one.param); });

}  // namespace
}  // namespace tessera
