// What lies in files is saved from there, and goes on there or elsewhere.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/comm/world.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/offload/offload.h>
#include <tessera/optim/adamw.h>
#include <tessera/train/training_state.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "offload/training.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

TEST(OffloadResume, GoesOnWithTheSameBitsInFilesAndInMemory) {
  OffloadTraining in_memory;
  in_memory.num_steps = 6;
  in_memory.width = 700;  // parts of several chunks
  in_memory.fsdp.auto_wrap(wrap_by_size(100)).min_num_params(0);
  const Weights expected = train(in_memory);
  const TemporaryFolder folder;
  OffloadTraining in_files = in_memory;
  in_files.offload = OffloadOptions()
                         .parameters(Tier::kFile)
                         .gradients(Tier::kFile)
                         .states(Tier::kFile)
                         .folders({folder.file("swap")});
  const auto saved_in = [&](const OffloadTraining& training, const std::string& checkpoints, int num_steps) {
    OffloadTraining part = training;
    part.checkpoints = checkpoints;
    part.num_steps = num_steps;
    return train(part);
  };
  const std::string from_files = folder.file("from_files");
  const std::string from_memory = folder.file("from_memory");
  saved_in(in_files, from_files, 3);
  saved_in(in_memory, from_memory, 3);
  expect_same_bits(saved_in(in_files, from_files, 4), saved_in(in_memory, from_memory, 4), "either goes on");
  OffloadTraining on_three_ranks = in_files;
  on_three_ranks.num_ranks = 3;
  saved_in(on_three_ranks, from_memory, 4);  // loads and saves, and trains nothing
  expect_same_bits(saved_in(in_memory, from_files, 6), expected, "from files to memory");
  expect_same_bits(saved_in(in_files, from_memory, 6), expected, "from memory to files, by way of three ranks");
}

TEST(OffloadResume, GoesBackWithinAProcess) {
  const auto weights = [](const OffloadOptions& options) {
    at::Tensor weight;
    run_threads(1, [&](const World& world) {
      const TemporaryFolder folder;
      const Offload offload(options);
      const auto model = std::make_shared<torch::nn::LinearImpl>(8, 8);
      {
        const at::NoGradGuard no_grad;
        for (at::Tensor& parameter : model->parameters()) parameter.fill_(0.5);
      }
      const ShardedModel sharded =
          fully_shard(model, world, FsdpOptions().min_num_params(0).flat_sources(offload.sources()));
      optim::AdamW optimizer(sharded.parameters(), optim::AdamWOptions(1e-2));
      const auto step = [&](double scale) {
        optimizer.zero_grad();
        (model->forward(at::ones({2, 8})).square().sum() * scale).backward();
        optimizer.step();
      };
      CheckpointFolder checkpoints(folder.path(), world);
      TrainingState state(world);
      state.model(sharded).optimizer(optimizer);
      step(1);
      checkpoints.save(1, state.capture());
      step(-3);
      checkpoints.load_newest([&](const SavedStep& saved) { state.restore(saved); });
      step(2);
      weight = sharded.full_state_dict().at("weight");
    });
    return weight;
  };
  const TemporaryFolder folder;
  const at::Tensor found =
      weights(OffloadOptions().parameters(Tier::kFile).states(Tier::kFile).folders({folder.path().string()}));
  EXPECT_TRUE(at::equal(found, weights(OffloadOptions())));
}

}  // namespace
}  // namespace tessera::testing
