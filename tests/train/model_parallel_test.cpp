// A model on several devices as a config says, and what its ranks say to each other.
#include <tessera/core/error.h>
#include <tessera/train/model_parallel.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <map>

#include "support/error_message.h"
#include "support/require.h"
#include "train/shared_net.h"

namespace tessera::testing {
namespace {

at::Tensor numbers(std::vector<std::int64_t> shape, double phase = 0) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * 0.9 + phase).view(shape);
}

bool same(const at::Tensor& found, const at::Tensor& expected) {
  return found.sizes() == expected.sizes() && at::equal(found, expected);
}

TEST(ModelParallelContext, PartitionsAndGathersTensorsOfEverySize) {
  for (const int num_ranks : {1, 2, 3, 4, 5}) {
    run_threads(num_ranks, [&](const World& world) {
      for (const std::int64_t dim : {0, 1, -1}) {
        const ModelParallelContext context(world, ModelParallelConfig().split_dim(dim));
        for (std::int64_t size = 0; size < 12; ++size) {
          const at::Tensor whole = dim == 0 ? numbers({size, 3}) : numbers({3, size});
          const auto part = context.partition(whole);
          const TensorPartition range = part.partition("tp");
          const std::int64_t chunk = (size + num_ranks - 1) / num_ranks;
          require_equal(range.start, std::min(size, world.rank() * chunk), "where the part begins");
          require_equal(range.end, std::min(size, (world.rank() + 1) * chunk), "where the part ends");
          require(same(part.local(), whole.slice(dim, range.start, range.end)), "the part");
          require(same(context.gather(part), whole), "all of it again");
        }
      }
    });
  }
}

TEST(ModelParallelContext, AddsUpAndBroadcasts) {
  run_threads(3, [](const World& world) {
    const ModelParallelContext context(world, ModelParallelConfig().split_dim(1));
    const at::Tensor mine = numbers({2, 7}, world.rank());
    const at::Tensor before = mine.clone();
    const at::Tensor sum = numbers({2, 7}, 0) + numbers({2, 7}, 1) + numbers({2, 7}, 2);
    require(at::allclose(context.all_reduce(mine), sum, 0, 1e-15), "the sum");
    require(at::allclose(context.reduce_scatter(mine).local(), context.partition(sum).local(), 0, 1e-15),
            "this rank's part of the sum");
    require(same(context.broadcast(mine, 2), numbers({2, 7}, 2)), "what rank 2 has");
    require(same(mine, before), "the argument is as it was");
  });
}

TEST(ModelParallelContext, LetsGradientsThrough) {
  run_threads(3, [](const World& world) {
    const ModelParallelContext context(world, ModelParallelConfig());
    const at::Tensor x = numbers({7, 2}).requires_grad_();
    const at::Tensor weights = numbers({7, 2}, 5);
    const auto half = context.partition(x);
    const auto parts =
        DistributedTensor::from_local(half.local().square(), half.mesh(), half.placements(), half.shape());
    (context.gather(parts) * weights).sum().backward();
    require(at::allclose(x.grad(), 2 * x * weights), "through partition and gather");

    const at::Tensor y = numbers({7, 2}, world.rank()).requires_grad_();
    (context.all_reduce(y) * weights).sum().backward();
    require(at::allclose(y.grad(), weights), "through a sum");
  });
}

std::map<std::string, at::Tensor> trained(SharedNet& net, const ParallelModel& model, const at::Tensor& batch) {
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    net.forward(batch).square().mean().backward();
    optimizer.step();
  }
  std::map<std::string, at::Tensor> weights;
  const auto whole = model.gather();
  for (const auto& entry : net.named_parameters()) weights[entry.key()] = entry.value().detach().clone();
  return weights;
}

ModelParallelConfig tensor_config() {
  return ModelParallelConfig().tp_plan({"first: columns", "side: rows", "second: rows"});
}

TEST(ModelParallelContext, TrainsAModelAsOneProcess) {
  const auto alone = std::make_shared<SharedNet>();
  const auto expected = trained(*alone, ParallelModel(alone), numbers({8, kSharedNetInputs}));
  for (const int num_devices : {1, 2, 3, 0}) {
    for (const bool checkpointing : {false, true}) {
      run_threads(6, [&](const World& world) {
        const ModelParallelContext context(
            world, tensor_config().num_devices(num_devices).gradient_checkpointing(checkpointing));
        const auto net = std::make_shared<SharedNet>();
        // Each copy of the model has every sample: the average over copies is then that of one process.
        const auto found = trained(*net, context.parallelize(net), numbers({8, kSharedNetInputs}));
        for (const auto& [name, value] : expected) {
          require(at::allclose(found.at(name), value, 1e-10, 1e-12), name + " differs from one process's");
        }
        require_equal(context.mesh()["tp"].size(), num_devices == 0 ? 6 : num_devices, "devices of a model");
        require_equal(net->num_runs, checkpointing ? 6 : 3, "how often layers ran");
        require(context.device().is_cpu() == !at::hasCUDA(), "the device");
      });
    }
  }
}

/// The same in steps of micro-batches.
std::map<std::string, at::Tensor> stepped(SharedNet& net, const ParallelizedModel& model, const at::Tensor& batch) {
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model.step(batch, [&](const at::Tensor& micro) { return net.forward(micro).square().mean(); });
    optimizer.step();
  }
  std::map<std::string, at::Tensor> weights;
  const auto whole = model.gather();
  for (const auto& entry : net.named_parameters()) weights[entry.key()] = entry.value().detach().clone();
  return weights;
}

TEST(ModelParallelContext, TrainsInStagesAndInBothWaysAsOneProcess) {
  const auto alone = std::make_shared<SharedNet>();
  const auto expected = trained(*alone, ParallelModel(alone), numbers({8, kSharedNetInputs}));
  const auto pipeline = ModelParallelConfig().strategy(ModelParallelism::kPipeline).num_devices(2).pipeline_depth(2);
  const auto hybrid = tensor_config().strategy(ModelParallelism::kHybrid).num_devices(4).pipeline_depth(2);
  for (const ModelParallelConfig& config : {pipeline, hybrid}) {
    run_threads(4, [&](const World& world) {
      const ModelParallelContext context(world, ModelParallelConfig(config).micro_batch_size(2));
      const auto net = std::make_shared<SharedNet>();
      const auto found = stepped(*net, context.parallelize(net), numbers({8, kSharedNetInputs}));
      for (const auto& [name, value] : expected) {
        require(at::allclose(found.at(name), value, 1e-10, 1e-12), name + " differs from one process's");
      }
      require_equal(context.mesh()["pp"].size(), 2, "stages");
    });
  }
}

TEST(ModelParallelContext, TellsAllThatIsWrongAtOnce) {
  run_threads(4, [](const World& world) {
    const auto config = ModelParallelConfig().num_devices(3).pipeline_depth(2).device_ids({0, 1});
    expect_parts(message_of<ConfigError>([&] { const ModelParallelContext context(world, config); }),
                 {"num_devices: expected a divisor of the 4 ranks, found 3",
                  "pipeline_depth: expected 1 with the strategy \"tensor\", found 2", "device_ids: ", "(rank "});
    const auto hybrid = ModelParallelConfig().strategy(ModelParallelism::kHybrid).pipeline_depth(3);
    expect_parts(message_of<ConfigError>([&] { const ModelParallelContext context(world, hybrid); }),
                 {"pipeline_depth: expected a divisor of the 4 devices of a model, found 3"});
    const auto stages = ModelParallelConfig().strategy(ModelParallelism::kPipeline).pipeline_depth(2);
    expect_parts(message_of<ConfigError>([&] { const ModelParallelContext context(world, stages); }),
                 {"pipeline_depth: expected the 4 devices of a model, found 2"});
    expect_parts(message_of<ConfigError>([&] {
                   const ModelParallelContext context(world, ModelParallelConfig().split_dim(2));
                   context.partition(at::ones({2, 2}));
                 }),
                 {"split_dim is 2, and the tensor has 2 dimensions"});
    expect_parts(message_of<ConfigError>([&] {
                   const ModelParallelContext context(world, ModelParallelConfig());
                   context.parallelize(std::make_shared<SharedNet>());
                 }),
                 {"tp_plan does not say which layers are cut"});
  });
}

TEST(ModelParallelConfig, ChoosesTheBackendOfTheWorld) {
  EXPECT_EQ(ModelParallelConfig().backend("gloo").world_options().backend(), "gloo");
  const World world = init(ModelParallelConfig().backend("gloo").world_options());
  expect_parts(
      message_of<ConfigError>([&] { const ModelParallelContext context(world, ModelParallelConfig().backend("mpi")); }),
      {"backend: expected a world on mpi, found gloo; start it by init(config.world_options())"});
}

}  // namespace
}  // namespace tessera::testing
