// One program for a model however it is shared: what it computes, what it counts, and what parallelize() refuses.
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/optim/grad_scaler.h>
#include <tessera/shard/global_slice.h>
#include <tessera/train/parallelize.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "support/error_message.h"
#include "support/require.h"
#include "train/shared_net.h"

namespace tessera::testing {
namespace {

constexpr int kBatch = 8;
constexpr int kSteps = 3;
constexpr int kMicroBatches = 2;  // on each rank

at::Tensor samples(int step) {
  return at::sin(at::arange(kBatch * kSharedNetInputs, at::kDouble) * 0.7 + step).view({kBatch, kSharedNetInputs});
}

struct Outcome {
  std::vector<double> norms;
  std::map<std::string, at::Tensor> weights;
};

/// Knows nothing of how the model is shared, but which part of a batch is this rank's.
Outcome train(SharedNet& net, const ParallelModel& model, int rank, int num_ranks) {
  Outcome outcome;
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.05));
  const int share = kBatch / num_ranks;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto parts = samples(step).narrow(0, rank * share, share).split(share / kMicroBatches);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::optional<NoSync> guard;
      if (i + 1 < parts.size()) guard.emplace(model);
      (net.forward(parts[i]).square().mean() / kMicroBatches).backward();
    }
    outcome.norms.push_back(clip_grad_norm(model, 0.3));
    optimizer.step();
  }
  const auto whole = model.gather();
  for (const auto& entry : net.named_parameters()) outcome.weights[entry.key()] = entry.value().detach().clone();
  return outcome;
}

const Outcome& alone() {
  static const Outcome outcome = [] {
    const auto net = std::make_shared<SharedNet>();
    return train(*net, ParallelModel(net), 0, 1);
  }();
  return outcome;
}

void expect_as_alone(const Outcome& found, const std::string& what) {
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(found.norms[step], alone().norms[step], 1e-12) << what << ", step " << step;
  }
  for (const auto& [name, expected] : alone().weights) {
    EXPECT_TRUE(at::allclose(found.weights.at(name), expected, 1e-9, 1e-12)) << what << ": " << name;
  }
}

TEST(Parallelize, TrainsInEveryWayAsOneProcess) {
  for (const Way& way : all_ways()) {
    for (const int num_ranks : {2, 4}) {
      for (const bool recompute : {false, true}) {
        run_threads(num_ranks, [&](const World& world) {
          ParallelizeOptions options = way.options;
          options.recompute(recompute);
          const auto net = std::make_shared<SharedNet>();
          const ParallelModel model = parallelize(net, make_mesh(world, options), options);
          expect_as_alone(train(*net, model, world.rank(), world.size()), way.name);
          require_equal(net->num_runs, kSteps * kMicroBatches * (recompute ? 2 : 1), "how often layers ran");
        });
      }
    }
  }
}

TEST(ParallelModel, CountsParametersOnceHoweverTheyAreShared) {
  const auto plain = std::make_shared<SharedNet>();
  EXPECT_EQ(count_parameters(plain), kSharedNetParameters);
  for (const Way& way : all_ways()) {
    run_threads(4, [&](const World& world) {
      const auto model = parallelize(std::make_shared<SharedNet>(), make_mesh(world, way.options), way.options);
      EXPECT_EQ(count_parameters(model), kSharedNetParameters) << way.name;
    });
  }
}

TEST(ParallelModel, GivesTheSameNamesOnEveryRankAndTensorsThatCoverTheModel) {
  for (const Way& way : all_ways()) {
    std::mutex mutex;
    std::map<std::string, std::int64_t> held;
    std::set<std::vector<std::string>> lists;
    run_threads(4, [&](const World& world) {
      const auto net = std::make_shared<SharedNet>();
      const auto model = parallelize(net, make_mesh(world, way.options), way.options);
      std::vector<std::string> names;
      const std::scoped_lock lock(mutex);
      for (const StateSlice& slice : model.state_slices()) {
        names.push_back(slice.name);
        held[slice.name] += slice.values.numel();
      }
      lists.insert(names);
    });
    EXPECT_EQ(lists.size(), 1U) << way.name;
    EXPECT_EQ(held.at("norm.running_mean"), 4 * 10) << way.name << ": buffers are whole";
    const bool is_whole = way.is_ddp() || way.name.starts_with("no_shard");
    EXPECT_EQ(held.at("first.weight"), (is_whole ? 4 : way.name.starts_with("hybrid") ? 2 : 1) * 60) << way.name;
  }
}

TEST(ParallelModel, TakesRankZerosBuffersWhenAsked) {
  for (const Way& way : all_ways()) {
    run_threads(4, [&](const World& world) {
      const auto net = std::make_shared<SharedNet>();
      auto options = way.options;
      options.fsdp(FsdpOptions(options.fsdp()).broadcast_buffers(false));
      options.ddp(DdpOptions(options.ddp()).broadcast_buffers(false));
      const auto model = parallelize(net, make_mesh(world, options), options);
      net->norm->running_mean.fill_(world.rank() + 1);
      model.sync_buffers();
      require(net->norm->running_mean.eq(1).all().item<bool>(), way.name + ": rank 0's");
    });
  }
}

TEST(ParallelModel, RefusesToTakeBuffersWithinAStep) {
  run_threads(2, [](const World& world) {
    for (const Way& way : all_ways()) {
      if (way.options.shard_ranks() != 0) continue;
      const auto net = std::make_shared<SharedNet>();
      const auto model = parallelize(net, make_mesh(world, way.options), way.options);
      const at::Tensor loss = net->forward(samples(0)).mean();
      expect_parts(message_of<ConfigError>([&] { model.sync_buffers(); }),
                   {way.is_ddp() ? "sync_buffers must be called between steps"
                                 : "sync_buffers() was called between a forward and the end of its backward"});
      loss.backward();
      model.sync_buffers();
    }
  });
}

TEST(ParallelModel, IsWhatAScalerAgreesWith) {
  for (const Way& way : all_ways()) {
    run_threads(4, [&](const World& world) {
      const auto net = std::make_shared<SharedNet>();
      const auto model = parallelize(net, make_mesh(world, way.options), way.options);
      GradScaler scaler(model, GradScalerOptions().init_scale(4));
      torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.05));
      scaler.scale(net->forward(samples(0)).mean()).backward();
      if (world.rank() == 3) {
        for (const at::Tensor& parameter : model.parameters()) {
          if (parameter.grad().defined()) parameter.grad().fill_(std::numeric_limits<double>::infinity());
        }
      }
      require(!scaler.step(optimizer), way.name + ": all skip the step");
    });
  }
}

TEST(ParallelModel, OfAModuleThatIsSharedIsTheSharedOne) {
  for (const Way& way : all_ways()) {
    run_threads(4, [&](const World& world) {
      const auto net = std::make_shared<SharedNet>();
      std::optional<ParallelModel> model = parallelize(net, make_mesh(world, way.options), way.options);
      net->forward(samples(world.rank())).mean().backward();
      EXPECT_EQ(clip_grad_norm(net, 1e9), clip_grad_norm(*model, 1e9)) << way.name;
      EXPECT_EQ(ParallelModel(net).model_state(), model->model_state()) << way.name;
      world.comm().barrier();
      model.reset();
      EXPECT_TRUE(ParallelModel(net).axes().empty()) << way.name << ": nobody shares it any more";
    });
  }
}

TEST(ParallelModel, OfOneProcessScalesAlone) {
  const auto net = std::make_shared<SharedNet>();
  GradScaler scaler{ParallelModel(net)};
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.05));
  scaler.scale(net->forward(samples(0)).mean()).backward();
  EXPECT_TRUE(scaler.step(optimizer));
}

TEST(ParallelModel, RefusesANullPointerAndAModelThatWasCut) {
  expect_parts(message_of<ConfigError>([] { ParallelModel{std::shared_ptr<torch::nn::Module>()}; }),
               {"there is no model: the pointer is null"});
  const auto cut = std::make_shared<torch::nn::Module>();
  const Slice half = Slice::whole({8}).narrow(0, {4, 4});
  set_global_slice(cut->register_parameter("w", at::zeros({4})), half);
  const ParallelModel model{cut};
  expect_parts(message_of<ConfigError>([&] { clip_grad_norm(model, 1.0); }),
               {"a model in one process knows nothing of other ranks", "of w this one has", half.text()});
  run_threads(2, [&](const World& world) {
    const auto other = std::make_shared<torch::nn::Module>();
    set_global_slice(other->register_parameter("w", at::zeros({4})), half);
    expect_parts(message_of<ConfigError>([&] { clip_grad_norm(distribute(other, world), 1.0); }),
                 {"distribute() knows nothing of other ranks", half.text()});
  });
}

TEST(Parallelize, RefusesWhatNobodyWouldShare) {
  run_threads(4, [](const World& world) {
    const auto options = ParallelizeOptions();
    const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}});
    expect_parts(message_of<ConfigError>([&] { parallelize(std::make_shared<SharedNet>(), mesh, options); }),
                 {"2 ranks along \"tp\"", "along \"dp\" alone", "make_mesh"});
    expect_parts(message_of<ConfigError>([&] { make_mesh(world, ParallelizeOptions().shard_ranks(2)); }),
                 {"shard_ranks is for fsdp.strategy \"hybrid_shard\" only"});
    const auto hybrid = ParallelizeOptions()
                            .data_parallelism(DataParallelism::kFsdp)
                            .shard_ranks(3)
                            .fsdp(FsdpOptions().strategy(ShardingStrategy::kHybridShard));
    expect_parts(message_of<ConfigError>([&] { make_mesh(world, hybrid); }),
                 {"expected shard_ranks to divide the 4 ranks, found 3"});
    const auto plain = std::make_shared<torch::nn::LinearImpl>(3, 2);
    expect_parts(message_of<ConfigError>(
                     [&] { parallelize(plain, DeviceMesh::linear(world), ParallelizeOptions().recompute(true)); }),
                 {"no module of", "is Recomputable", "tessera::recompute()"});
    expect_parts(
        message_of<ConfigError>([&] { parallelize(std::shared_ptr<torch::nn::Module>(), DeviceMesh::linear(world)); }),
        {"there is no model to parallelize"});
  });
}

}  // namespace
}  // namespace tessera::testing
