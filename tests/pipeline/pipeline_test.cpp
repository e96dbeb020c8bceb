// What a program may do with a model on stages. What is refused: misuse_test.cpp.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/intercept/deferred_init.h>
#include <tessera/intercept/split_product.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/pipeline/layer_list.h>
#include <tessera/pipeline/measure_layers.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/recompute/recompute.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "pipeline/net.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/require_tensors.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

TEST(Pipeline, TrainsAsOneProcess) { expect_same(plain_forward); }

TEST(Pipeline, TakesMicroBatchesOfOtherSizes) {
  expect_same(plain_forward, 3, batch(7));
  expect_same(plain_forward, 1, batch(1));
}

TEST(Pipeline, SendsWhatSkipsAStageOnce) {
  expect_same([](Net& net, const Tensor& x) {
    const Tensor h = net.first(x);
    return (net.second(torch::tanh(h)) * h + h.sin()).square().mean();
  });
}

TEST(Pipeline, UsesAWeightOnSeveralStages) {
  const auto forward = [](Net& net, const Tensor& x) {
    const Tensor h = net.first(x);
    return (net.second(h).matmul(net.first->weight.t()) * net.scale + net.first->bias).square().mean();
  };
  expect_same(forward);
  expect_same(forward, 2, batch(), two_stages().schedule("zb-h1"));
}

TEST(Pipeline, ComputesFromParametersWhereTheyAreUsed) {
  expect_same([](Net& net, const Tensor& x) {
    const Tensor normalised = net.first->weight / net.first->weight.norm();
    return net.second(at::linear(x, normalised)).matmul(normalised).square().mean();
  });
}

TEST(Pipeline, LeavesGradientsAwayThatNobodyComputed) {
  expect_same([](Net& net, const Tensor& x) {
    return net.second(net.first(x).detach()).square().mean();  // the first layer gets none
  });
  expect_same([](Net& net, const Tensor& x) {
    Tensor h;
    {
      const torch::NoGradGuard no_grad;
      h = net.first(x);
    }
    return net.second(h).square().mean();
  });
}

TEST(Pipeline, TakesBuffersThatNobodyWrites) {
  expect_same([](Net& net, const Tensor& x) {
    return (net.second(net.first(x)) * net.table).index_select(1, net.table.to(at::kLong)).square().mean();
  });
}

TEST(Pipeline, KeepsTheStatisticsOfBatchNormOnTheirStage) {
  const Forward forward = [](Net& net, const Tensor& x) { return net.norm(net.second(net.first(x))).pow(3).mean(); };
  expect_same(forward);
  Net alone;
  for (const Tensor& micro : batch().tensor_split(2)) forward(alone, micro);
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    pipe.step(batch(), 2, [&](const Tensor& micro) { return forward(*net, micro); });
    if (world.rank() == 0) return;
    require(at::allclose(net->norm->running_mean, alone.norm->running_mean), "running mean");
    require(at::allclose(net->norm->running_var, alone.norm->running_var), "running variance");
    require_equal(net->norm->num_batches_tracked.item<std::int64_t>(), std::int64_t{2}, "number of batches");
  });
}

TEST(Pipeline, CallsHooksOnceWhereTheValueIs) {
  expect_same([](Net& net, const Tensor& x) {
    const Tensor h = net.first(x);
    h.register_hook([](const Tensor& gradient) { return gradient * 3; });
    const Tensor y = net.second(h);
    y.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
    return y.square().mean();
  });
}

TEST(Pipeline, RunsACustomFunctionWhereItsValuesAre) {
  expect_same([](Net& net, const Tensor& x) { return net.second(Doubled::apply(net.first(x))).square().mean(); });
  expect_same([](Net& net, const Tensor& x) { return Doubled::apply(net.second(net.first(x))).square().mean(); });
  expect_same([](Net& net, const Tensor& x) {
    const Tensor h = Doubled::apply(net.first(x));
    return (net.second(Doubled::apply(h)) + h).square().mean();
  });
}

TEST(Pipeline, WritesInPlaceWithinAStageAndIntoTheNext) {
  expect_same([](Net& net, const Tensor& x) {
    Tensor h = net.first(x);
    h.mul_(net.scale).tanh_();
    Tensor y = net.second(h);
    return y.add_(h).square().mean();
  });
  expect_same([](Net& net, const Tensor& x) {
    Tensor h = net.first(x) * 1;
    h += net.second(h.clone());  // the value of the first stage becomes one of the second
    return h.square().mean();
  });
}

TEST(Pipeline, PassesListsViewsAndIntegersOn) {
  expect_same([](Net& net, const Tensor& x) {
    const auto halves = net.first(x).chunk(2, 1);
    const Tensor places = halves[0].argmax(1);
    const Tensor turned = torch::cat({halves[1], halves[0]}, 1).t();
    const Tensor y = net.second(turned.t());
    return (y.gather(1, places.unsqueeze(1)) + y.sum() + turned.expand({2, 4, -1}).sum()).square().mean();
  });
}

TEST(Pipeline, KeepsStatisticsOfTheBatchItself) {
  expect_same([](Net& net, const Tensor& x) {
    const Tensor y = net.second(net.first(x));
    return (y + at::batch_norm(x, {}, {}, net.norm->running_mean, net.norm->running_var, true, 0.1, 1e-5, false))
        .square()
        .mean();
  });
}

TEST(Pipeline, KeepsWhatAutogradSavedOfABufferThatIsWritten) {
  expect_same([](Net& net, const Tensor& x) {
    net.counter.add_(1);
    return net.second(net.first(x) / net.counter).square().mean();
  });
}

TEST(Pipeline, TellsAValueFromItsData) {
  expect_same([](Net& net, const Tensor& x) {
    const Tensor h = torch::tanh(net.first(x));
    const Tensor gate = torch::sigmoid(net.second(h.data()));
    return (net.second(h) * gate).square().mean();
  });
  expect_same([](Net& net, const Tensor& x) {
    const Tensor h = net.second(torch::tanh(net.first(x)));
    return (h * net.first->weight.data().norm() + at::linear(h, net.first->weight)).square().mean();
  });
}

TEST(Pipeline, AsksForContiguousMemoryAsOneProcess) {
  expect_same([](Net& net, const Tensor& x) {
    const auto heads = [&](const Tensor& y) { return y.view({1, -1, 2, 2}).transpose(1, 2); };
    const Tensor h = net.first(x);
    const Tensor y = at::scaled_dot_product_attention(heads(h), heads(h * 2), heads(h), {}, 0.0, true);
    return net.second(y.transpose(1, 2).contiguous().view({-1, 4})).square().mean();
  });
  // reshape() gives a view of a tensor that lies so, and a copy of another.
  for (const int gap : {1, 2}) {
    expect_same([gap](Net& net, const Tensor& x) {
      const Tensor h = torch::tanh(net.first(x)).t().slice(1, 0, 2, gap);
      const Tensor z = h * net.second->weight.slice(1, 0, h.size(1)) + 0.1;
      Tensor flat = z.reshape({-1});
      flat.mul_(2);
      return (z * z).sum() + flat.sum();
    });
  }
}

TEST(Pipeline, ChoosesByNumbers) {
  expect_same([](Net& net, const Tensor& x) {
    return net.second(net.first(x).index({torch::tensor({0, 0})})).square().mean();
  });
}

TEST(Pipeline, TakesBatchesWithAnUndefinedPart) {
  Net alone;
  const Tensor expected = plain_forward(alone, batch(7)).detach();
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const Tensor loss = pipe.step(std::pair(Tensor(), batch(7)), 3,
                                  [&](const auto& micro) { return plain_forward(*net, micro.second); });
    require(at::allclose(loss, expected), "the mean over all samples");
  });
}

TEST(Pipeline, EvaluatesCounts) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const Tensor mean =
        pipe.evaluate(batch(), 2, [&](const Tensor& micro) { return net->second(net->first(micro)).isfinite().sum(); });
    require_equal(mean.item<double>(), 8.0, "finite numbers of a micro-batch");
  });
}

TEST(Pipeline, WritesToBuffersFromTheFirstStepOn) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const auto loss_of = [&](const Tensor& micro) { return net->norm(net->second(net->first(micro))).square().mean(); };
    net->eval();
    pipe.evaluate(batch(), 2, loss_of);
    net->train();
    pipe.step(batch(), 2, loss_of);
    if (world.rank() == 1)
      require_equal(net->norm->num_batches_tracked.item<std::int64_t>(), std::int64_t{2}, "batches");
  });
}

TEST(Pipeline, TakesBatchesOfManyTensors) {
  const Tensor x = batch();
  const Tensor y = batch(4, 2);
  Net alone;
  const auto loss_of = [](Net& net, const Tensor& in, const Tensor& out) {
    return (net.second(net.first(in)) - out).square().mean();
  };
  loss_of(alone, x, y).backward();
  run_threads(2, [&](const World& world) {
    const auto check = [&](const Net& net, const std::string& what) {
      const Tensor& mine = world.rank() == 0 ? net.first->weight : net.second->weight;
      const Tensor& wanted = world.rank() == 0 ? alone.first->weight : alone.second->weight;
      require(at::allclose(mine.grad(), wanted.grad()), what);
    };
    auto net = std::make_shared<Net>();
    auto pipe = pipeline(net, world, two_stages());
    pipe.step(std::pair(x, y), 2, [&](const auto& micro) { return loss_of(*net, micro.first, micro.second); });
    check(*net, "a pair");
    net->zero_grad();
    pipe.step(std::vector{x, y}, 2, [&](const auto& micro) { return loss_of(*net, micro[0], micro[1]); });
    check(*net, "a vector");
    net->zero_grad();
    pipe.step(std::map<std::string, Tensor>{{"x", x}, {"y", y}}, 2,
              [&](const auto& micro) { return loss_of(*net, micro.at("x"), micro.at("y")); });
    check(*net, "a map");
    net->zero_grad();
    pipe.step(std::tuple(x, y), 2,
              [&](const auto& micro) { return loss_of(*net, std::get<0>(micro), std::get<1>(micro)); });
    check(*net, "a tuple");
  });
}

TEST(Pipeline, WeighsLossesAsAsked) {
  // As with tokens that are ignored: each micro-batch counts by what is left of it.
  const Tensor x = batch(4);
  const Tensor counts = torch::tensor({1., 0., 1., 1.}, at::kDouble);
  const auto loss_of = [](Net& net, const Tensor& in, const Tensor& count) {
    const Tensor each = net.second(net.first(in)).square().mean(1);
    return (each * count).sum() / count.sum();
  };
  Net alone;
  loss_of(alone, x, counts).backward();
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const Tensor loss = pipe.step(
        std::pair(x, counts), 2, [&](const auto& micro) { return loss_of(*net, micro.first, micro.second); },
        [](const auto& micro) { return micro.second.sum().template item<double>(); });
    require(at::allclose(loss, loss_of(alone, x, counts).detach()), "the loss");
    if (world.rank() == 0) require(at::allclose(net->first->weight.grad(), alone.first->weight.grad()), "a gradient");
  });
}

TEST(Pipeline, EvaluatesWithoutGradients) {
  Net alone;
  const Tensor expected = plain_forward(alone, batch()).detach();
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const auto loss_of = [&](const Tensor& micro) { return plain_forward(*net, micro); };
    for (int i = 0; i < 2; ++i) {
      require(at::allclose(pipe.evaluate(batch(), 4, loss_of), expected), "the loss");
      for (const Tensor& parameter : net->parameters()) require(!parameter.grad().defined(), "no gradient");
      pipe.step(batch(), 4, loss_of);
      net->zero_grad();
    }
  });
}

TEST(Pipeline, FollowsParametersThatAreFrozenBetweenSteps) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const auto loss_of = [&](const Tensor& micro) { return plain_forward(*net, micro); };
    pipe.step(batch(), 2, loss_of);
    net->zero_grad();
    for (const Tensor& parameter : net->first->parameters()) Tensor(parameter).set_requires_grad(false);
    pipe.step(batch(), 2, loss_of);
    require(!net->first->weight.grad().defined(), "the frozen layer has no gradient");
    require_equal(net->second->weight.grad().defined(), world.rank() == 1, "the other one has");
  });
}

TEST(Pipeline, GathersAllParameters) {
  Net alone;
  const Tensor expected = plain_forward(alone, batch());
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    {
      const auto whole = pipe.gather();
      require(at::allclose(plain_forward(*net, batch()), expected), "a forward of this rank alone");
    }
    const auto outside = [&] { plain_forward(*net, batch()); };
    EXPECT_THAT(message_of<ConfigError>(outside), HasSubstr("of the pipeline, on another rank than this one"));
    pipe.step(batch(), 2, [&](const Tensor& micro) { return plain_forward(*net, micro); });
  });
}

TEST(Pipeline, GivesBytesToItsOwnStagesAlone) {
  run_threads(2, [&](const World& world) {
    const auto net = [] {
      const DeferredInit no_bytes;
      return std::make_shared<nn::SequentialImpl>(nn::Linear(64, 64), nn::Linear(64, 64));
    }();
    const Pipeline pipe = pipeline(std::shared_ptr<nn::Module>(net), world, PipelineOptions());
    std::int64_t num_bytes = 0;
    for (const Tensor& parameter : net->parameters()) {
      if (parameter.has_storage()) num_bytes += static_cast<std::int64_t>(parameter.storage().nbytes());
    }
    require_equal(num_bytes, std::int64_t{(64 * 64 + 64) * 4}, "bytes of parameters");
    pipe.step(torch::ones({2, 64}), 2, [&](const Tensor& micro) { return net->forward(micro).square().mean(); });
  });
}

TEST(Pipeline, TakesAListOfLayerFactories) {
  const auto factories = [] {
    std::vector<LayerFactory> layers;
    for (int i = 0; i < 4; ++i) layers.emplace_back([] { return nn::AnyModule(nn::Linear(64, 64)); });
    layers.emplace_back([] { return nn::AnyModule(nn::ReLU()); });
    return layers;
  };
  torch::manual_seed(5);
  nn::Sequential alone;
  for (const LayerFactory& make : factories()) alone->push_back(make());
  const auto expected = alone->forward(torch::ones({2, 64})).square().mean();
  expected.backward();
  torch::manual_seed(5);
  auto model = deferred_layers(factories());  // ranks that are threads share the generator
  const World world = fake_world(0, 1);
  const Pipeline pipe = pipeline(model, world, PipelineOptions().schedule("interleaved").num_chunks(4));
  const auto loss =
      pipe.step(torch::ones({2, 64}), 1, [&](const Tensor& micro) { return model->forward(micro).square().mean(); });
  require(at::equal(loss, expected.detach()), "the loss");
  for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
    require(at::equal(model->parameters()[i].grad(), alone->parameters()[i].grad()), "gradients");
  }
}

struct WritesToWhatArrived : nn::Module {
  WritesToWhatArrived() { to(torch::kDouble); }
  Tensor forward(const Tensor& input) {
    const Tensor x =
        recompute([this](const Tensor& y) { return y.clone().mul_(factor).add_(y); }, layer->forward(input));
    return last(x).square().mean();
  }
  nn::Linear layer = register_module("layer", nn::Linear(4, 4));
  Tensor factor = register_parameter("factor", torch::full({4}, 1.5));
  nn::Linear last = register_module("last", nn::Linear(4, 4));
};

/// A value of the stage before it is written to in place, in a part that is computed again in backward.
TEST(Pipeline, RecomputesFromWhatArrived) {
  const auto model = std::make_shared<WritesToWhatArrived>();
  const Tensor x = torch::rand({2, 3, 4}, torch::kDouble);
  model->forward(x).backward();
  const Tensor expected = model->factor.grad().clone();
  model->zero_grad();
  run_threads(1, [&](const World& world) {
    const auto options = PipelineOptions().schedule("interleaved").split({"last"}).place({"factor: 1"});
    const Pipeline pipe = pipeline(model, world, options);
    pipe.step(x, 1, [&](const Tensor& micro) { return model->forward(micro); });
    require(at::equal(model->factor.grad(), expected), "the gradient of what it is multiplied by");
  });
}

TEST(Pipeline, MeasuresWhatLayersCost) {
  const Tensor input = torch::rand({64, 8});
  run_threads(2, [&](const World& world) {
    nn::Sequential model(nn::Linear(8, 8), nn::BatchNorm1d(8), nn::Linear(8, 512), nn::Linear(512, 512));
    world.comm().barrier();  // ranks as threads share the generator
    model->parameters()[0].mutable_grad() = torch::ones({8, 8});
    const auto loss = [&](const Tensor& micro) { return model->forward(micro).square().mean(); };
    const auto costs = measure_layers(model.ptr(), world, input, loss);
    require_equal(costs.size(), std::size_t{4}, "layers");
    require(costs[3] > costs[0], "the largest layer costs most");
    require(at::equal(model->parameters()[0].grad(), torch::ones({8, 8})), "gradients are as before");
    require(!model->parameters()[1].grad().defined(), "and none is added");
    require(at::equal(model->named_buffers()["1.running_mean"], torch::zeros({8})), "statistics are as before");
    model->zero_grad();
    const Pipeline pipe = pipeline(model, world, PipelineOptions().layer_costs(costs));
    pipe.step(input, 2, loss);
    require(pipe.stage_seconds().contains(world.rank()), "seconds of this rank's stage");
  });
}

TEST(Pipeline, CutsByTheCostOfLayers) {
  run_threads(2, [&](const World& world) {
    const nn::Sequential model(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4));
    const Pipeline pipe = pipeline(model, world, PipelineOptions().layer_costs({1, 1, 1, 3}));
    pipe.step(torch::ones({2, 4}), 2,
              [&](const Tensor& micro) { return nn::Sequential(model)->forward(micro).square().mean(); });
    require_equal(pipe.report().stages[1].first, std::string("3.weight"), "the second stage begins with");
  });
}

TEST(Pipeline, TellsWhatCrosses) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    pipe.step(batch(), 2, [&](const Tensor& micro) {
      const Tensor h = net->first(micro);
      return (net->second(h) * net->first->bias).square().mean();
    });
    const PipelineReport report = pipe.report();
    require_equal(report.stages.size(), std::size_t{2}, "stages");
    require_equal(report.values.size(), std::size_t{1}, "values");
    require_equal(report.values.front().num_bytes, std::int64_t{2 * 4 * 8}, "bytes");
    require_equal(report.shared.size(), std::size_t{1}, "shared parameters");
    require_equal(report.shared.front().name, std::string("first.bias"), "name");
    EXPECT_THAT(report.text(), HasSubstr("in every step: first.bias (stage 0)"));
  });
}

TEST(Pipeline, ExecutesAScheduleOfOnesOwn) {
  expect_same(plain_forward, 2, batch(), two_stages().own_schedule([](int num_micro_batches) {
    auto schedule = make_pipeline_schedule(PipelineScheduleKind::kGPipe, {2, num_micro_batches});
    // Backwards in the other order.
    auto reversed = make_pipeline_schedule(PipelineScheduleKind::kSequential, {2, num_micro_batches});
    return num_micro_batches == 2 ? reversed : schedule;
  }));
}

TEST(Pipeline, FollowsAForwardThatChangesWhenAsked) {
  expect_same(
      [](Net& net, const Tensor& x) {
        const Tensor h = net.first(x);
        return (x.sum().item<double>() > 0 ? net.second(h) : net.second(torch::tanh(h)) + h.sum()).square().mean();
      },
      4, batch(), two_stages().dynamic(true));
}

TEST(SplitProduct, LeavesGradientsOfWeightsForLater) {
  const Tensor x = batch().requires_grad_();
  const Tensor weight = formula({4, 3}, 2, at::kDouble).requires_grad_();
  const Tensor bias = formula({3}, 3, at::kDouble).requires_grad_();
  (x.matmul(weight) + bias).square().sum().backward();
  const std::vector<Tensor> expected{x.grad(), weight.grad(), bias.grad()};
  for (const Tensor& one : {x, weight, bias}) Tensor(one).mutable_grad() = Tensor();
  const auto deferred = std::make_shared<intercept::DeferredGradients>();
  Tensor y;
  {
    const torch::NoGradGuard no_grad;
    y = x.matmul(weight) + bias;
  }
  intercept::connect_deferred_product(y, x, weight, bias, deferred);
  y.square().sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), expected[0]));
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_FALSE(deferred->empty());
  deferred->run();
  EXPECT_TRUE(at::allclose(weight.grad(), expected[1]));
  EXPECT_TRUE(at::allclose(bias.grad(), expected[2]));
  EXPECT_TRUE(deferred->empty());
}

}  // namespace
}  // namespace tessera::testing
