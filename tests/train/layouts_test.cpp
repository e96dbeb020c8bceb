// One program for any layout: steps are those of one process, and every field of the config changes a run.
#include <tessera/core/error.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/train/parallelize.h>

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "support/error_message.h"
#include "support/require.h"
#include "support/whole_copy.h"

namespace tessera::testing {
namespace {

using at::Tensor;

constexpr std::int64_t kWidth = 6;
constexpr std::int64_t kNumClasses = 5;
constexpr int kNumSamples = 16;
constexpr int kNumSteps = 3;

/// Knows nothing of ranks.
struct LayeredNet : torch::nn::Module {
  explicit LayeredNet(int num_layers = 4) {
    for (int i = 0; i < num_layers; ++i) layers->push_back(torch::nn::Linear(kWidth, kWidth));
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(kWidth, kNumClasses));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (Tensor& one : parameters()) {
      one.copy_(0.5 * at::sin(at::arange(one.numel(), at::kDouble) * 0.7 + ++phase).view(one.sizes()));
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor hidden = x;
    for (const auto& layer : *layers) hidden = hidden + at::tanh(layer->as<torch::nn::Linear>()->forward(hidden));
    Tensor scores = head(hidden);
    saw_bfloat16 = saw_bfloat16 || scores.scalar_type() == at::kBFloat16;
    largest_batch = std::max(largest_batch, x.size(0));
    return scores;
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
  bool saw_bfloat16 = false;
  std::int64_t largest_batch = 0;
};

Tensor inputs(int step) {
  return at::sin(at::arange(kNumSamples * kWidth, at::kDouble) * 0.3 + step).view({kNumSamples, kWidth});
}

/// Some of them do not count.
Tensor targets(int step) {
  Tensor found = (at::arange(kNumSamples, at::kLong) * 7 + step) % kNumClasses;
  found.index_put_({at::arange(step, 9 + step, 3)}, -100);
  return found;
}

using Batch = std::pair<Tensor, Tensor>;

Tensor loss_of(LayeredNet& net, const Batch& batch) {
  return torch::nn::functional::cross_entropy(net.forward(batch.first), batch.second);
}

double num_counted(const Batch& batch) { return batch.second.ne(-100).sum().item<double>(); }

struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, Tensor> weights;
};

const Trained& one_process() {
  static const Trained trained = [] {
    Trained found;
    LayeredNet net;
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < kNumSteps; ++step) {
      optimizer.zero_grad();
      const Tensor loss = loss_of(net, {inputs(step), targets(step)});
      loss.backward();
      found.losses.push_back(loss.item<double>());
      found.norms.push_back(clip_grad_norm(net.parameters(), 0.5));
      optimizer.step();
    }
    for (const auto& one : net.named_parameters()) found.weights[one.key()] = one.value().detach().clone();
    return found;
  }();
  return trained;
}

Batch part_of_batch(const DeviceMesh& mesh, int step) {
  const BatchRanks ranks = batch_ranks(mesh);
  const std::int64_t share = kNumSamples / ranks.size;
  return {inputs(step).narrow(0, ranks.rank * share, share), targets(step).narrow(0, ranks.rank * share, share)};
}

Trained train_steps(LayeredNet& net, const ParallelizedModel& model, const DeviceMesh& mesh) {
  Trained found;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    const auto loss = [&](const Batch& micro) { return loss_of(net, micro); };
    found.losses.push_back(model.step(part_of_batch(mesh, step), loss, num_counted).item<double>());
    found.norms.push_back(clip_grad_norm(model, 0.5));
    optimizer.step();
  }
  const auto whole = model.gather();
  for (const auto& one : net.named_parameters()) found.weights[one.key()] = whole_copy(one.value());
  return found;
}

void require_as_alone(const Trained& found, const std::string& what) {
  for (int step = 0; step < kNumSteps; ++step) {
    const auto i = static_cast<std::size_t>(step);
    require(std::abs(found.losses[i] - one_process().losses[i]) < 1e-12, what + ": the loss");
    require(std::abs(found.norms[i] - one_process().norms[i]) < 1e-11, what + ": the norm");
  }
  for (const auto& [name, expected] : one_process().weights) {
    require(at::allclose(found.weights.at(name), expected, 1e-10, 1e-12), what + ": " + name);
  }
}

ParallelizeOptions options_of(int dp, int tp, int pp, bool shards) {
  auto options = ParallelizeOptions().dp(dp).tp(tp).pp(pp);
  options.layout(ThreeDParallelismConfig(options.layout()).micro_batch_size(2));
  if (tp > 1) options.tp_plan({"layers.*: columns", "head: columns"});
  if (shards) {
    options.data_parallelism(DataParallelism::kFsdp).fsdp(FsdpOptions().min_num_params(10).auto_wrap(wrap_by_size(20)));
  }
  return options;
}

void train_in_layout(const ParallelizeOptions& options, const std::string& what) {
  run_threads(options.dp() * options.tp() * options.pp(), [&](const World& world) {
    const DeviceMesh mesh = make_mesh(world, options);
    const auto net = std::make_shared<LayeredNet>();
    require_as_alone(train_steps(*net, parallelize(net, mesh, options), mesh), what);
  });
}

TEST(Layouts, TrainAsOneProcessWithTokensThatDoNotCount) {
  for (const auto& [dp, tp, pp] : std::vector<std::tuple<int, int, int>>{
           {1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}, {2, 1, 2}, {1, 2, 2}, {2, 2, 2}, {4, 1, 2}}) {
    for (const bool shards : {false, true}) {
      train_in_layout(options_of(dp, tp, pp, shards), std::to_string(dp) + " x " + std::to_string(tp) + " x " +
                                                          std::to_string(pp) + (shards ? ", shards" : ", copies"));
    }
  }
}

TEST(Layouts, GiveTheSameBitsInReproducibleMode) {
  std::map<std::string, Tensor> expected;
  for (const auto& [dp, pp] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 2}}) {
    auto options = options_of(dp, 1, pp, false);
    options.ddp(DdpOptions().reproducible(true).micro_batches(8));
    std::mutex mutex;
    run_threads(dp * pp, [&](const World& world) {
      const DeviceMesh mesh = make_mesh(world, options);
      const auto net = std::make_shared<LayeredNet>();
      const auto model = parallelize(net, mesh, options);
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < kNumSteps; ++step) {
        optimizer.zero_grad();
        model.step(part_of_batch(mesh, step), [&](const Batch& micro) { return loss_of(*net, micro); });
        clip_grad_norm(model, 0.5);
        optimizer.step();
      }
      const auto whole = model.gather();
      const std::lock_guard lock(mutex);
      for (const auto& one : net->named_parameters()) {
        const auto [known, is_new] = expected.emplace(one.key(), one.value().detach().clone());
        require(is_new || at::equal(known->second, one.value()),
                std::to_string(dp) + " x " + std::to_string(pp) + ": other bits of " + one.key());
      }
    });
  }
}

TEST(Layouts, HybridShardsOfStages) {
  auto options = options_of(4, 1, 2, true);
  FsdpOptions fsdp = options.fsdp();
  options.shard_ranks(2).fsdp(fsdp.strategy(ShardingStrategy::kHybridShard));
  train_in_layout(options, "hybrid");
}

TEST(Layouts, RefuseBatchesOfAnotherNumberOfMicroBatches) {
  run_threads(2, [](const World& world) {
    const auto options = options_of(2, 1, 1, false);
    const DeviceMesh mesh = make_mesh(world, options);
    const auto net = std::make_shared<LayeredNet>();
    const auto model = parallelize(net, mesh, options);
    const auto loss = [&](const Batch& micro) { return loss_of(*net, micro); };
    const std::int64_t count = world.rank() == 0 ? 8 : 4;
    const auto step = [&] { model.step(Batch(inputs(0).narrow(0, 0, count), targets(0).narrow(0, 0, count)), loss); };
    expect_parts(message_of<ConfigError>(step), {"micro-batches, and that of rank", "give all ranks batches"});
  });
}

TEST(Layouts, RefuseTargetsThatDifferBetweenRanksThatShareLayers) {
  run_threads(2, [](const World& world) {
    const auto options = options_of(1, 2, 1, false);
    const DeviceMesh mesh = make_mesh(world, options);
    const auto net = std::make_shared<LayeredNet>();
    const auto model = parallelize(net, mesh, options);
    const auto step = [&] {
      model.step(Batch(inputs(0), targets(world.rank())), [&](const Batch& micro) { return loss_of(*net, micro); });
    };
    expect_parts(message_of<ConfigError>(step), {"share layers and have different batches", "batch_ranks()"});
  });
}

TEST(Layouts, EvaluateAsOneProcess) {
  run_threads(4, [](const World& world) {
    const auto options = options_of(2, 1, 2, false);
    const DeviceMesh mesh = make_mesh(world, options);
    const auto net = std::make_shared<LayeredNet>();
    const auto model = parallelize(net, mesh, options);
    const auto loss = [&](const Batch& micro) { return loss_of(*net, micro); };
    const double found = model.evaluate(part_of_batch(mesh, 0), loss, num_counted).item<double>();
    require(std::abs(found - one_process().losses.front()) < 1e-12, "the loss");
    for (const Tensor& one : net->parameters()) require(!one.grad().defined(), "no gradients");
  });
}

/// The config of the requirements, and what a run shows of it.
ThreeDParallelismConfig config() {
  return ThreeDParallelismConfig().num_layers(4).micro_batch_size(4).memory_strategy(MemoryStrategy::kBasic);
}

TEST(ThreeDParallelism, SizesAndOrderPlaceTheRanks) {
  run_threads(8, [](const World& world) {
    const auto layout = config().dp(2).tp(2).pp(2).pipeline_schedule(PipelineScheduleKind::kGPipe);
    const auto options = ParallelizeOptions().layout(layout).tp_plan({"layers.*: columns"});
    const DeviceMesh mesh = make_mesh(world, options);
    require_equal(mesh["pp"].coordinate(), world.rank() % 2, "pp is fastest");
    const auto other = ThreeDParallelismConfig(layout).axis_order({"pp", "tp", "dp"});
    require_equal(make_mesh(world, ParallelizeOptions(options).layout(other))["dp"].coordinate(), world.rank() % 2,
                  "now dp is");
    const auto net = std::make_shared<LayeredNet>();
    const auto model = parallelize(net, mesh, options);
    require_equal(model.pipeline()->schedule(4).num_ranks(), 2, "ranks of the pipeline");
    require(net->layers[0]->as<torch::nn::Linear>()->weight.sizes() == at::IntArrayRef({kWidth, kWidth}), "sizes");
  });
}

TEST(ThreeDParallelism, LayersAreSpreadAndCounted) {
  run_threads(2, [](const World& world) {
    const auto layout = config().pp(2).pipeline_schedule(PipelineScheduleKind::kOneForwardOneBackward);
    const auto net = std::make_shared<LayeredNet>();
    const auto model = parallelize(net, make_mesh(world, layout), layout);
    model.evaluate(Batch(inputs(0), targets(0)), [&](const Batch& micro) { return loss_of(*net, micro); });
    const PipelineReport report = model.pipeline()->report();
    require(report.stages[1].first.starts_with("layers.2"), "the second stage begins with " + report.stages[1].first);
    const auto wrong = [&] {
      const auto deeper = ThreeDParallelismConfig(layout).num_layers(6);
      parallelize(std::make_shared<LayeredNet>(), make_mesh(world, deeper), deeper);
    };
    expect_parts(message_of<ConfigError>(wrong), {"num_layers is 6, and the model has 4 elements"});
  });
}

TEST(ThreeDParallelism, TheScheduleIsTheOneThatRuns) {
  run_threads(2, [](const World& world) {
    const std::vector<std::pair<PipelineScheduleKind, int>> kinds = {{PipelineScheduleKind::kInterleaved, 4},
                                                                     {PipelineScheduleKind::kZeroBubbleH1, 2},
                                                                     {PipelineScheduleKind::kRoundRobin, 2}};
    for (const auto& [kind, num_stages] : kinds) {
      const auto layout = config().pp(2).pipeline_schedule(kind);
      const auto net = std::make_shared<LayeredNet>();
      const auto model = parallelize(net, make_mesh(world, layout), layout);
      const PipelineSchedule list = model.pipeline()->schedule(4);
      require_equal(list.num_stages(), num_stages, "stages");
      const auto wanted = make_pipeline_schedule(kind, {.num_ranks = 2, .num_micro_batches = 4});
      require(list.operations == wanted.operations, "the list of operations");
    }
  });
}

TEST(ThreeDParallelism, MicroBatchesAreNoLargerThanAsked) {
  const auto layout = config().micro_batch_size(3);
  const auto net = std::make_shared<LayeredNet>();
  run_threads(1, [&](const World& world) {
    const auto model = parallelize(net, make_mesh(world, layout), layout);
    require_equal(model.num_micro_batches(kNumSamples), 6, "micro-batches of 16 samples");
    model.step(Batch(inputs(0), targets(0)), [&](const Batch& micro) { return loss_of(*net, micro); });
  });
  EXPECT_EQ(net->largest_batch, 3);
}

TEST(ThreeDParallelism, MixedPrecisionComputesInBfloat16WithWeightsAsTheyWere) {
  for (const bool mixed : {false, true}) {
    run_threads(2, [&](const World& world) {
      const auto layout = config().pp(2).mixed_precision(mixed).pipeline_schedule(PipelineScheduleKind::kGPipe);
      const auto net = std::make_shared<LayeredNet>();
      net->to(at::kFloat);
      const auto model = parallelize(net, make_mesh(world, layout), layout);
      const auto loss = [&](const Batch& micro) { return loss_of(*net, micro); };
      model.step(Batch(inputs(0).to(at::kFloat), targets(0)), loss);
      require_equal(net->saw_bfloat16, mixed, "the head computes in bf16");
      for (const Tensor& one : model.parameters()) {
        require(one.scalar_type() == at::kFloat, "weights");
        require(!one.grad().defined() || one.grad().scalar_type() == at::kFloat, "gradients");
      }
    });
  }
}

TEST(ThreeDParallelism, MemoryStrategiesComputeAgainInEveryLayout) {
  const auto num_again = [](MemoryStrategy strategy, bool checkpointing, int tp, int pp) {
    std::int64_t found = 0;
    auto options = options_of(1, tp, pp, false);
    ThreeDParallelismConfig layout = options.layout();
    options.layout(layout.memory_strategy(strategy).gradient_checkpointing(checkpointing));
    run_threads(tp * pp, [&](const World& world) {
      const DeviceMesh mesh = make_mesh(world, options);
      const auto net = std::make_shared<LayeredNet>();
      const auto model = parallelize(net, mesh, options);
      require_as_alone(train_steps(*net, model, mesh), "with a memory strategy");
      if (world.rank() == 0) found = model.saved_memory().num_operators_again;
    });
    return found;
  };
  for (const auto& [tp, pp] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 2}}) {
    EXPECT_EQ(num_again(MemoryStrategy::kBasic, false, tp, pp), 0);
    const std::int64_t standard = num_again(MemoryStrategy::kStandard, false, tp, pp);
    EXPECT_GT(standard, 0) << tp << " x " << pp;
    EXPECT_EQ(num_again(MemoryStrategy::kBasic, true, tp, pp), standard) << "raised";
    EXPECT_GT(num_again(MemoryStrategy::kAggressive, true, tp, pp), standard) << "not lowered";
  }
}

TEST(ThreeDParallelism, GroupsHaveTheStrategyAndTheTimeout) {
  run_threads(2, [](const World& world) {
    const auto layout = config()
                            .dp(2)
                            .communication_strategy(CommunicationStrategy::kRing)
                            .communication_timeout(std::chrono::seconds(7));
    for (const DeviceMesh& mesh : {make_mesh(world, layout), make_mesh(world, ParallelizeOptions().layout(layout))}) {
      require(mesh["dp"].comm().strategy() == CommunicationStrategy::kRing, "the strategy");
      require(mesh["dp"].comm().timeout() == std::chrono::seconds(7), "the timeout");
    }
  });
}

TEST(ThreeDParallelism, AModelThatNeedsMoreThanTheLimitIsRefused) {
  run_threads(2, [](const World& world) {
    // 4 layers of 42 numbers and a head of 35, 8 bytes each, and their gradients.
    constexpr std::int64_t kWhole = (4 * 42 + 35) * 8 * 2;
    const auto of = [&](ThreeDParallelismConfig layout, std::int64_t limit) {
      layout.memory_limit_bytes(limit).pipeline_schedule(PipelineScheduleKind::kGPipe);
      parallelize(std::make_shared<LayeredNet>(), make_mesh(world, layout), layout);
    };
    of(config().dp(2), kWhole);
    expect_parts(message_of<ConfigError>([&] { of(config().dp(2), kWhole - 1); }),
                 {"a rank needs " + std::to_string(kWhole) + " bytes", "memory_limit_bytes is", "along tp or pp"});
    of(config().pp(2), (2 * 42 + 35) * 8 * 2);
    expect_parts(message_of<ConfigError>([&] { of(config().pp(2), (2 * 42 + 35) * 8 * 2 - 1); }), {"a rank needs"});
  });
}

}  // namespace
}  // namespace tessera::testing
