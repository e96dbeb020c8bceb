#include <tessera/comm/world.h>
#include <tessera/fsdp/fully_shard.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

at::Tensor whole_input_of(int rank) { return at::full({2, 3}, 1.0 + rank); }

TEST(WholeParameters, AreAveragedThoughNothingIsSharded) {
  run_threads(2, [](const World& world) {
    torch::nn::Linear layer(3, 2);
    const auto sharded = fully_shard(layer, world);
    layer(whole_input_of(world.rank())).sum().backward();
    EXPECT_TRUE(at::equal(layer->weight.grad(), at::full({2, 3}, 3.0))) << layer->weight.grad();
  });
}

TEST(WholeParameters, AreAveragedThoughWhatIsShardedIsFrozen) {
  run_threads(2, [](const World& world) {
    torch::nn::Linear layer(3, 2);
    layer->weight.set_requires_grad(false);
    const auto sharded = fully_shard(layer, world, FsdpOptions().min_num_params(4));
    EXPECT_EQ(sharded.parameters().size(), 1U);
    (layer(whole_input_of(world.rank())) * (1.0 + world.rank())).sum().backward();
    EXPECT_TRUE(at::equal(layer->bias.grad(), at::full({2}, 3.0))) << layer->bias.grad();
  });
}

TEST(WholeParameters, AddUpUnderNoSync) {
  run_threads(2, [](const World& world) {
    torch::nn::Linear layer(3, 2);
    const auto sharded = fully_shard(layer, world);
    const auto pass = [&] { layer(whole_input_of(world.rank())).sum().backward(); };
    {
      const auto guard = sharded.no_sync();
      pass();
    }
    EXPECT_TRUE(at::equal(layer->weight.grad(), at::full({2, 3}, 2.0 * (1 + world.rank()))));
    pass();
    EXPECT_TRUE(at::equal(layer->weight.grad(), at::full({2, 3}, 6.0)));
  });
}

}  // namespace
}  // namespace tessera
