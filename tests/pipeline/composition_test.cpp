// What programs do around the steps of a pipeline: each gives the numbers of one process, or is refused on every rank.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>
#include <tessera/data_parallel/sync_batch_norm.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/optim/autocast.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/shard/global_slice.h>
#include <tessera/train/training_state.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "pipeline/net.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

Tensor step_of(const Pipeline& pipe, Net& net, const Tensor& x = batch(), int num_micro_batches = 2) {
  return pipe.step(x, num_micro_batches, [&](const Tensor& micro) { return plain_forward(net, micro); });
}

/// Of those that this rank has.
void require_gradients(const Net& net, const Gradients& expected, double tolerance = 1e-12) {
  Gradients found;
  note_gradients(net, found);
  for (const auto& [name, gradient] : found) {
    require(expected.contains(name), "one process has no gradient of " + name);
    require(at::allclose(gradient, expected.at(name), tolerance, tolerance), name + " differs");
  }
}

void freeze_first_stage(Net& net) {
  for (const Tensor& one : net.first->parameters()) one.set_requires_grad(false);
  net.scale.set_requires_grad(false);
}

Gradients gradients_without_first_stage(const Tensor& x) {
  Net net;
  freeze_first_stage(net);
  plain_forward(net, x).backward();
  Gradients gradients;
  note_gradients(net, gradients);
  return gradients;
}

TEST(PipelineComposition, CopiesAStageThatHasNothingToTrain) {
  const Gradients expected = gradients_without_first_stage(batch(8));
  for (const bool is_frozen_before : {true, false}) {
    run_threads(4, [&](const World& world) {
      const DeviceMesh mesh(world, {{"dp", 2}, {"pp", 2}});
      const auto net = std::make_shared<Net>();
      if (is_frozen_before) freeze_first_stage(*net);
      const Pipeline pipe = pipeline(net, mesh["pp"], two_stages());
      const auto copies = distribute(net, mesh["dp"], DdpOptions().find_unused_parameters(true));
      const Tensor mine = batch(8).chunk(2)[mesh["dp"].comm().rank()];
      if (!is_frozen_before) {
        step_of(pipe, *net, mine);
        for (const Tensor& one : net->parameters()) Tensor(one).mutable_grad() = Tensor();
        freeze_first_stage(*net);
      }
      step_of(pipe, *net, mine);
      require_gradients(*net, expected);
      require_equal(net->second->weight.grad().defined(), mesh["pp"].comm().rank() == 1, "has a gradient");
    });
  }
}

TEST(PipelineComposition, RefusesOnEveryRankWhatOneStageOfShardsRefuses) {
  run_threads(2, [&](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 1}, {"pp", 2}});
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, mesh["pp"], two_stages());
    const auto shards = fully_shard(net, mesh["dp"], FsdpOptions().min_num_params(0));
    net->first->weight.set_requires_grad(false);
    const bool is_owner = world.rank() == 0;
    const char* const words =
        is_owner ? "was frozen after fully_shard()" : "rank 0 of the pipeline refuses what is asked for, and says why";
    EXPECT_THAT(message_of<ConfigError>([&] { step_of(pipe, *net); }), HasSubstr(words));
    EXPECT_THAT(message_of<ConfigError>([&] { const auto whole = shards.gather(); }), HasSubstr(words));
    net->first->weight.set_requires_grad(true);
    step_of(pipe, *net);  // nothing was begun
  });
}

TEST(PipelineComposition, RefusesOnEveryRankWhatFailsOnOneBeforeTheStep) {
  const Gradients expected = gradients_alone(plain_forward, 2, batch());
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const auto failing = [&] {
      pipe.step(batch(), 2, [&](const Tensor& micro) {
        if (world.rank() == 1) throw std::runtime_error("mine");
        return plain_forward(*net, micro);
      });
    };
    if (world.rank() == 1) {
      EXPECT_THROW(failing(), std::runtime_error);
    } else {
      EXPECT_THAT(message_of<ConfigError>(failing), HasSubstr("refuses what is asked for, and says why"));
    }
    step_of(pipe, *net);
    require_gradients(*net, expected);
  });
}

TEST(PipelineComposition, RefusesPromisesAroundAStepAndGoesOn) {
  const Gradients expected = gradients_alone(plain_forward, 2, batch());
  run_threads(2, [&](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 1}, {"pp", 2}});
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, mesh["pp"], two_stages());
    const auto copies = distribute(net, mesh["dp"], DdpOptions().find_unused_parameters(true));
    {
      const auto promised = copies.promise_gradients();
      EXPECT_THAT(message_of<ConfigError>([&] { step_of(pipe, *net); }), HasSubstr("there is one already"));
    }
    step_of(pipe, *net);
    require_gradients(*net, expected);
  });
}

TEST(PipelineComposition, RefusesAStaticGraph) {
  run_threads(2, [&](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 1}, {"pp", 2}});
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, mesh["pp"], two_stages());
    const auto copies = distribute(net, mesh["dp"], DdpOptions().static_graph(true));
    EXPECT_THAT(message_of<ConfigError>([&] { step_of(pipe, *net); }),
                HasSubstr("with static_graph(true) one backward pass has all gradients"));
  });
}

TEST(PipelineComposition, ComparesAllDigitsOfWeights) {
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const auto step = [&] {
      int place = 0;
      pipe.step(
          batch(), 2, [&](const Tensor& micro) { return plain_forward(*net, micro); },
          [&](const Tensor&) { return 1e-8 * (1 + place++ * world.rank()); });
    };
    EXPECT_THAT(message_of<ConfigError>(step), HasSubstr("differ in the weights of the losses"));
  });
}

TEST(PipelineComposition, RunsTwoPipelinesInTurns) {
  const Gradients expected = gradients_alone(plain_forward, 2, batch());
  const Gradients of_other = gradients_alone(plain_forward, 4, batch(4, 2));
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const auto other = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const Pipeline second = pipeline(other, world, two_stages().schedule("gpipe"));
    step_of(pipe, *net);
    step_of(second, *other, batch(4, 2), 4);
    require_gradients(*net, expected);
    require_gradients(*other, of_other);
  });
}

TEST(PipelineComposition, AutocastsAroundTheStep) {
  const auto alone = [] {
    Net net;
    net.to(at::kFloat);
    const Autocast autocast(at::kBFloat16);
    for (const Tensor& micro : batch().to(at::kFloat).chunk(2)) (plain_forward(net, micro) * 0.5).backward();
    Gradients gradients;
    note_gradients(net, gradients);
    return gradients;
  };
  const Gradients expected = alone();
  for (const char* const schedule : {"1f1b", "zb-h1"}) {
    run_threads(2, [&](const World& world) {
      const auto net = std::make_shared<Net>();
      net->to(at::kFloat);
      const Pipeline pipe = pipeline(net, world, two_stages().schedule(schedule));
      for (int i = 0; i < 2; ++i) {
        for (const Tensor& one : net->parameters()) Tensor(one).mutable_grad() = Tensor();
        const Autocast autocast(at::kBFloat16);
        step_of(pipe, *net, batch().to(at::kFloat));
        require_gradients(*net, expected, 1e-6);
      }
    });
  }
}

/// A parameter gets other memory on every rank, as when a program loads weights its own way.
TEST(PipelineComposition, TrainsWhatWasGivenOtherMemoryOrRefuses) {
  const Gradients expected = [] {
    Net net;
    net.first->weight.set_data(net.first->weight.data() * 0.5);
    for (const Tensor& micro : batch().chunk(2)) (plain_forward(net, micro) * 0.5).backward();
    Gradients gradients;
    note_gradients(net, gradients);
    return gradients;
  }();
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    step_of(pipe, *net);
    for (const Tensor& one : net->parameters()) Tensor(one).mutable_grad() = Tensor();
    if (world.rank() == 0) net->first->weight.set_data(net->first->weight.data() * 0.5);
    step_of(pipe, *net);
    require_gradients(*net, expected);
  });
}

TEST(PipelineComposition, ShardsAndCopiesStages) {
  const Gradients expected = gradients_alone(plain_forward, 4, batch(16));
  run_threads(8, [&](const World& world) {
    const DeviceMesh mesh(world, {{"replicas", 2}, {"shards", 2}, {"pp", 2}});
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, mesh["pp"], two_stages());
    const auto shards = fully_shard(net, mesh["shards"], mesh["replicas"],
                                    FsdpOptions().strategy(ShardingStrategy::kHybridShard).min_num_params(0));
    const int part = mesh["replicas"].comm().rank() * 2 + mesh["shards"].comm().rank();
    step_of(pipe, *net, batch(16).chunk(4)[static_cast<std::size_t>(part)], 2);
    Tensor sum = torch::zeros({}, at::kDouble);
    for (const auto& entry : expected) {
      if (entry.first != "loss" && !entry.first.starts_with("buffer")) sum += entry.second.square().sum();
    }
    require(std::abs(clip_grad_norm(pipe, 1e6) - sum.sqrt().item<double>()) < 1e-12, "the norm");
  });
}

/// Its statistics travel inside of the forward, where most ranks have no bytes of them.
TEST(PipelineComposition, RefusesBatchNormOverRanks) {
  struct Normalised : Net {
    explicit Normalised(const Ranks& ranks)
        : over_ranks(register_module("over_ranks", SyncBatchNorm(nn::BatchNormOptions(4), ranks))) {
      over_ranks->to(at::kDouble);
    }
    SyncBatchNorm over_ranks;
  };
  run_threads(4, [&](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"pp", 2}});
    const auto net = std::make_shared<Normalised>(mesh["dp"]);
    const Pipeline pipe = pipeline(net, mesh["pp"], two_stages());
    const auto copies = distribute(net, mesh["dp"], DdpOptions().find_unused_parameters(true));
    const auto step = [&] {
      pipe.step(batch(), 2,
                [&](const Tensor& micro) { return net->over_ranks(net->second(net->first(micro))).square().mean(); });
    };
    EXPECT_THAT(message_of<ConfigError>(step), HasSubstr("this backend takes contiguous CPU tensors"));
  });
}

/// What tensor parallelism and optimizers ask of a tensor.
TEST(PipelineComposition, LetsGoOfASingleNumber) {
  struct Scaled : Net {
    Scaled() : factor(register_parameter("factor", torch::ones({}, at::kDouble))) {}
    Tensor factor;
  };
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Scaled>();
    const Pipeline pipe = pipeline(net, world, two_stages().place({"factor: 1"}));
    {
      const auto whole = pipe.gather();
    }
    require(global_slice(net->factor).shape().empty(), "it can be asked for");
    pipe.step(batch(), 2, [&](const Tensor& micro) { return plain_forward(*net, micro) * net->factor; });
  });
}

TEST(PipelineComposition, RefusesOnEveryRankWhenAllIsFrozen) {
  run_threads(2, [&](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 1}, {"pp", 2}});
    const auto net = std::make_shared<Net>();
    freeze_first_stage(*net);
    const Pipeline pipe = pipeline(net, mesh["pp"], two_stages());
    const auto copies = distribute(net, mesh["dp"], DdpOptions().find_unused_parameters(true));
    for (const Tensor& one : net->parameters()) one.set_requires_grad(false);
    const char* const words = world.rank() == 1 ? "there is nothing to average" : "rank 1 of the pipeline refuses";
    EXPECT_THAT(message_of<ConfigError>([&] { step_of(pipe, *net); }), HasSubstr(words));
  });
}

TEST(PipelineComposition, SavesAndLoadsCopiesOfStages) {
  const TemporaryFolder folder;
  run_threads(2, [&](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 1}, {"pp", 2}});
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, mesh["pp"], two_stages());
    const auto copies = distribute(net, mesh["dp"], DdpOptions().find_unused_parameters(true));
    step_of(pipe, *net);  // each stage has buckets since, for other parameters
    TrainingState state(world);
    state.model(copies);
    CheckpointFolder checkpoints(folder.path(), world);
    const SaveReport report = checkpoints.save(1, state.capture());
    require(report.error.empty(), report.error);
    const bool is_here = !intercept::is_elsewhere(net->second->weight);
    const Tensor saved = is_here ? net->second->weight.detach().clone() : Tensor();
    const torch::NoGradGuard no_grad;
    if (is_here) net->second->weight.zero_();
    checkpoints.load_newest([&](const SavedStep& step) { state.restore(step); });
    if (is_here) require(at::equal(net->second->weight, saved), "the weight is as it was saved");
  });
}

TEST(PipelineComposition, EvaluatesBetweenStepsWithoutATrace) {
  const Gradients expected = gradients_alone(plain_forward, 2, batch());
  run_threads(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    const Pipeline pipe = pipeline(net, world, two_stages());
    const auto loss = [&](const Tensor& micro) { return plain_forward(*net, micro); };
    pipe.evaluate(batch(6, 3), 3, loss);
    step_of(pipe, *net);
    net->eval();
    pipe.evaluate(batch(6, 3), 2, loss);
    net->train();
    require_gradients(*net, expected);
  });
}

}  // namespace
}  // namespace tessera::testing
