// Reproducible mode: the same bits on one process, on stages, and on copies of stages.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parity/models.h"
#include "pipeline/net.h"
#include "support/error_message.h"
#include "support/require.h"

namespace tessera::testing {
namespace {

constexpr int kAllMicroBatches = 8;
constexpr int kSteps = 4;

using Weights = std::map<std::string, at::Tensor>;

Weights weights_of(const ParityModel& model) {
  Weights found;
  for (const auto& one : model.named_parameters()) found[one.key()] = one.value().detach().clone();
  return found;
}

at::Tensor loss_of(ParityModel& model, int step, int micro_batch) {
  return model.loss(model.forward(model.input(step, micro_batch)), step, micro_batch);
}

torch::optim::SGD optimizer_of(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(5e-2).momentum(0.9));
}

/// What the guide says of one process.
Weights trained_alone(const std::string& name, torch::Dtype dtype) {
  Weights weights;
  run_threads(1, [&](const World& world) {
    const auto model = make_parity_model(name, dtype);
    const auto copies = distribute(model, world, DdpOptions().reproducible(true).micro_batches(kAllMicroBatches));
    auto optimizer = optimizer_of(copies.parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      for (int i = 0; i < kAllMicroBatches; ++i) loss_of(*model, step, i).backward();
      clip_grad_norm(copies, 0.5);
      optimizer.step();
    }
    weights = weights_of(*model);
  });
  return weights;
}

struct StagesCase {
  int dp;
  int pp;
  const char* schedule;
};

void expect_same_bits(const std::string& name, torch::Dtype dtype, const StagesCase& layout, const Weights& expected) {
  run_threads(layout.dp * layout.pp, [&](const World& world) {
    const DeviceMesh mesh(world, {{"dp", layout.dp}, {"pp", layout.pp}});
    const auto model = make_parity_model(name, dtype);
    const Pipeline pipe = pipeline(model, mesh["pp"], PipelineOptions().schedule(layout.schedule).reproducible(true));
    std::optional<ParallelModel> copies;
    if (layout.dp > 1) copies = distribute(model, mesh["dp"]);
    auto optimizer = optimizer_of(pipe.parameters());
    const int mine = kAllMicroBatches / layout.dp;
    const int first = mesh["dp"].coordinate() * mine;
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      PipelineBatch batch;
      batch.num_micro_batches = mine;
      batch.loss = [&](int i) { return loss_of(*model, step, first + i); };
      batch.tensors = [&](int i) { return std::vector{model->input(step, first + i)}; };
      batch.weights.assign(static_cast<std::size_t>(mine), 2);
      pipe.run(batch, true);
      clip_grad_norm(pipe, 0.5);
      optimizer.step();
    }
    const auto whole = pipe.gather();
    for (const auto& [parameter, value] : weights_of(*model)) {
      require(at::equal(value, expected.at(parameter)), name + " on " + std::to_string(layout.dp) + " x " +
                                                            std::to_string(layout.pp) + ", " + layout.schedule +
                                                            ": other bits of " + parameter);
    }
  });
}

class ReproduciblePipelines : public ::testing::TestWithParam<std::string> {};

TEST_P(ReproduciblePipelines, GiveTheBitsOfOneProcess) {
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    const Weights expected = trained_alone(GetParam(), dtype);
    for (const StagesCase& layout : std::vector<StagesCase>{{1, 1, "1f1b"},
                                                            {1, 2, "1f1b"},
                                                            {1, 2, "zb-v"},
                                                            {1, 3, "gpipe"},
                                                            {2, 2, "interleaved"},
                                                            {2, 2, "zb-h1"},
                                                            {4, 1, "sequential"},
                                                            {4, 2, "1f1b"},
                                                            {2, 3, "round_robin"}}) {
      expect_same_bits(GetParam(), dtype, layout, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ReproduciblePipelines, ::testing::Values("gpt", "gpt2", "transformer"),
                         [](const auto& test) { return test.param; });

struct TwoLayers : torch::nn::Module {
  TwoLayers() { to(at::kDouble); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(4, 4));
};

TEST(ReproduciblePipeline, RefusesWhatHasOtherBits) {
  const auto options = PipelineOptions().split({"second"}).reproducible(true);
  const auto refusal_of = [&](const std::function<void(const World&, TwoLayers&, const Pipeline&)>& step) {
    return message_of<ConfigError>([&] {
      run_threads(2, [&](const World& world) {
        const auto net = std::make_shared<TwoLayers>();
        const Pipeline pipe = pipeline(net, world, options);
        step(world, *net, pipe);
      });
    });
  };
  const auto plain = [](TwoLayers& net) {
    return [&net](const at::Tensor& micro) { return net.second(net.first(micro)).square().mean(); };
  };
  EXPECT_THAT(
      refusal_of([&](const World&, TwoLayers& net, const Pipeline& pipe) { pipe.step(batch(6), 3, plain(net)); }),
      ::testing::HasSubstr("a number of micro-batches that is a power of two, found 3"));
  EXPECT_THAT(
      refusal_of([&](const World&, TwoLayers& net, const Pipeline& pipe) { pipe.step(batch(5), 2, plain(net)); }),
      ::testing::HasSubstr("reproducible mode needs micro-batches of equal weights"));
  const auto draws = [&] {  // on one rank: as threads they share the generator
    run_threads(1, [&](const World& world) {
      const auto net = std::make_shared<TwoLayers>();
      const Pipeline pipe = pipeline(net, world, PipelineOptions(options).schedule("interleaved"));
      pipe.step(batch(4), 2, [&](const at::Tensor& micro) {
        return torch::dropout(net->second(net->first(micro)), 0.5, true).square().mean();
      });
    });
  };
  EXPECT_THAT(message_of<ConfigError>(draws),
              ::testing::HasSubstr("reproducible mode refuses random numbers in the forward"));
  EXPECT_THAT(refusal_of([&](const World&, TwoLayers& net, const Pipeline& pipe) {
                pipe.step(batch(4), 2, plain(net));
                pipe.step(batch(4), 2, plain(net));
              }),
              ::testing::HasSubstr("gradients cleared before a forward"));
  EXPECT_THAT(refusal_of([&](const World&, TwoLayers& net, const Pipeline& pipe) {
                at::set_num_threads(2);
                const auto step = [&] { pipe.step(batch(4), 2, plain(net)); };
                const std::string words = message_of<ConfigError>(step);
                at::set_num_threads(1);
                throw ConfigError(words);
              }),
              ::testing::HasSubstr("A pipeline takes one"));
  const auto shards = [&] {
    run_threads(4, [&](const World& world) {
      const DeviceMesh mesh(world, {{"dp", 2}, {"pp", 2}});
      const auto net = std::make_shared<TwoLayers>();
      const Pipeline pipe = pipeline(net, mesh["pp"], options);
      const auto sharded = fully_shard(net, mesh["dp"]);
      pipe.step(batch(4), 2, plain(*net));
    });
  };
  EXPECT_THAT(message_of<ConfigError>(shards), ::testing::HasSubstr("and no fully_shard()"));
  const auto compressed = [&] {
    run_threads(4, [&](const World& world) {
      const DeviceMesh mesh(world, {{"dp", 2}, {"pp", 2}});
      const auto net = std::make_shared<TwoLayers>();
      const Pipeline pipe = pipeline(net, mesh["pp"], options);
      const auto copies = distribute(net, mesh["dp"], DdpOptions().compression("fp16"));
      pipe.step(batch(4), 2, plain(*net));
    });
  };
  EXPECT_THAT(message_of<ConfigError>(compressed),
              ::testing::HasSubstr("reproducible mode adds gradients along a tree of its own"));
  const auto uneven = [&] {
    run_threads(4, [&](const World& world) {
      const DeviceMesh mesh(world, {{"dp", 2}, {"pp", 2}});
      const auto net = std::make_shared<TwoLayers>();
      const Pipeline pipe = pipeline(net, mesh["pp"], options);
      const auto copies = distribute(net, mesh["dp"]);
      pipe.step(batch(4), mesh["dp"].coordinate() == 0 ? 2 : 4, plain(*net));
    });
  };
  EXPECT_THAT(message_of<ConfigError>(uneven), ::testing::HasSubstr("needs as many micro-batches on every copy"));
  const auto cut = [&] {
    run_threads(4, [&](const World& world) {
      const DeviceMesh mesh(world, {{"tp", 2}, {"pp", 2}});
      const auto net = std::make_shared<TwoLayers>();
      const auto parts = tensor_parallel(net, mesh["tp"], {{"first", split_columns()}});
      pipeline(net, mesh["pp"], options);
    });
  };
  EXPECT_THAT(message_of<ConfigError>(cut), ::testing::HasSubstr("whose sums over ranks have other bits"));
}

}  // namespace
}  // namespace tessera::testing
