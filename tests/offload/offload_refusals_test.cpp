// What offload refuses rather than computing something else.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/offload/offload.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize/output-archive.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>

#include "offload/training.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

OffloadOptions all_in(const TemporaryFolder& folder) {
  return OffloadOptions()
      .parameters(Tier::kFile)
      .gradients(Tier::kFile)
      .states(Tier::kFile)
      .folders({folder.path().string()});
}

/// A layer whose parts lie in files, and an optimizer that has stepped it once.
struct Layer {
  Layer(const World& world, const TemporaryFolder& folder)
      : offload(all_in(folder)),
        model(std::make_shared<torch::nn::LinearImpl>(8, 8)),
        sharded(fully_shard(model, world, FsdpOptions().min_num_params(0).flat_sources(offload.sources()))),
        optimizer(sharded.parameters(), optim::AdamWOptions(1e-2)) {
    backward();
    optimizer.step();
  }
  void backward() const { model->forward(at::ones({2, 8})).sum().backward(); }

  Offload offload;
  std::shared_ptr<torch::nn::LinearImpl> model;
  ShardedModel sharded;
  optim::AdamW optimizer;
};

template <class Kind, class Function>
void expect_refused(const Function& function, std::initializer_list<std::string_view> parts) {
  expect_parts(message_of<Kind>(function), parts);
}

TEST(OffloadRefusals, ReadingWhatLiesInAFileSaysWhere) {
  run_threads(1, [](const World& world) {
    const TemporaryFolder folder;
    const Layer layer(world, folder);
    const at::Tensor shard = layer.sharded.parameters().front();
    expect_refused<c10::Error>([&] { static_cast<void>(shard.detach().sum().item<float>()); },
                               {"lies in a file at this point", "OffloadOptions::parameters", "sharded.gather()"});
    const auto& state = static_cast<torch::optim::AdamWParamState&>(*layer.optimizer.state().begin()->second);
    expect_refused<c10::Error>([&] { static_cast<void>(state.exp_avg().sum().item<float>()); },
                               {"the optimizer state of", "lies in a file"});
    layer.backward();
    expect_refused<c10::Error>([&] { static_cast<void>(shard.grad().sum().item<float>()); },
                               {"the gradients of", "lie in a file", "clip_grad_norm"});
  });
}

TEST(OffloadRefusals, AnArchiveOfAnOptimizerWhoseStatesLieInFilesIsRefused) {
  run_threads(1, [](const World& world) {
    const TemporaryFolder folder;
    const Layer layer(world, folder);
    torch::serialize::OutputArchive archive;
    std::ostringstream stream;
    expect_refused<c10::Error>(
        [&] {
          layer.optimizer.save(archive);
          archive.save_to(stream);
        },
        {"the optimizer state of", "lies in a file"});
  });
}

TEST(OffloadRefusals, GradientsByParameterCannotLieInFiles) {
  run_threads(1, [](const World& world) {
    const TemporaryFolder folder;
    const Offload offload(all_in(folder));
    const auto model = std::make_shared<torch::nn::LinearImpl>(8, 8);
    expect_refused<ConfigError>(
        [&] {
          fully_shard(model, world,
                      FsdpOptions().min_num_params(0).use_orig_params(true).flat_sources(offload.sources()));
        },
        {"are kept in a file for the whole unit, and are asked for by parameter", "use_orig_params"});
  });
}

TEST(OffloadRefusals, OneOffloadKeepsOneModel) {
  run_threads(1, [](const World& world) {
    const TemporaryFolder folder;
    const Layer layer(world, folder);
    const auto model = std::make_shared<torch::nn::LinearImpl>(8, 8);
    expect_refused<ConfigError>([&] { fully_shard(model, world, FsdpOptions().flat_sources(layer.offload.sources())); },
                                {"keeps another model already", "make one for each model"});
  });
}

TEST(OffloadRefusals, ModelsOnDevicesAreRefused) {
  run_threads(1, [](const World& world) {
    const Offload offload{OffloadOptions()};
    const FlatSourcesSpec spec{world.comm(), 1, 0, c10::Device(c10::kCUDA, 0)};
    expect_refused<ConfigError>([&] { offload.sources()(spec); },
                                {"offload keeps parts of models that train on the CPU, and this one is on cuda:0"});
  });
}

TEST(OffloadRefusals, GradientsAreNotAddedToScaledOnes) {
  run_threads(1, [](const World& world) {
    const TemporaryFolder folder;
    const Layer layer(world, folder);
    layer.backward();
    clip_grad_norm(layer.sharded, 1e-3);
    expect_refused<ConfigError>([&] { layer.backward(); },
                                {"are to be added to those that clip_grad_norm() has scaled"});
  });
}

/// States were found by their parameter: a second optimizer went on with those of the first.
TEST(OffloadStates, AreThoseOfOneOptimizer) {
  const auto weights = [](const OffloadOptions& options) {
    at::Tensor weight;
    run_threads(1, [&](const World& world) {
      const Offload offload(options);
      const auto model = std::make_shared<torch::nn::LinearImpl>(8, 8);
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) parameter.fill_(0.5);
      const ShardedModel sharded =
          fully_shard(model, world, FsdpOptions().min_num_params(0).flat_sources(offload.sources()));
      const auto step = [&](torch::optim::Optimizer& optimizer, double scale) {
        const at::AutoGradMode with_grad(true);
        optimizer.zero_grad();
        (model->forward(at::ones({2, 8})).sum() * scale).backward();
        optimizer.step();
      };
      const optim::AdamWOptions rate(1e-2);
      auto gone = std::make_unique<optim::AdamW>(sharded.parameters(), rate);
      step(*gone, 1);
      gone.reset();
      optim::AdamW first(sharded.parameters(), rate);
      step(first, -3);
      optim::AdamW second(sharded.parameters(), rate);
      step(second, 2);
      step(first, 1);
      weight = sharded.full_state_dict().at("weight");
    });
    return weight;
  };
  const at::Tensor expected = weights(OffloadOptions());
  for (const Tier parameters : {Tier::kHost, Tier::kFile}) {
    const TemporaryFolder folder;
    const auto options = OffloadOptions().parameters(parameters).states(Tier::kFile).folders({folder.path().string()});
    EXPECT_TRUE(at::equal(weights(options), expected));
  }
}

TEST(OffloadRefusals, AFolderThatCannotBeUsedIsNamed) {
  expect_refused<StorageError>([] { Offload(OffloadOptions().states(Tier::kFile).folders({"/proc/nowhere"})); },
                               {"/proc/nowhere"});
}

}  // namespace
}  // namespace tessera::testing
