#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/distribute.h>

#include <ATen/Parallel.h>
#include <torch/nn/modules.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "parity/models.h"
#include "parity/noisy.h"
#include "parity/reproducible.h"
#include "support/error_message.h"

namespace tessera::testing {
namespace {

constexpr int kNumSteps = 50;

/// The hashes of all ranks.
template <class Train>
std::set<std::uint64_t> hashes_of_ranks(int num_ranks, const Train& train) {
  std::mutex mutex;
  std::set<std::uint64_t> found;
  run_threads(num_ranks, [&](const World& world) {
    const auto hash = train(world.comm());
    const std::lock_guard lock(mutex);
    found.insert(hash);
  });
  return found;
}

TEST(Reproducible, GivesOneHashFor1And2And4And8RanksWhateverDelaysThem) {
  std::set<std::uint64_t> all;
  for (const int num_ranks : {1, 2, 4, 8}) {
    all.merge(hashes_of_ranks(num_ranks, [&](const Communicator& comm) {
      return train_reproducibly(comm, kNumSteps, {.seed = 11U * num_ranks, .delays = num_ranks > 1 ? 0.05 : 0});
    }));
  }
  EXPECT_EQ(all.size(), 1U);
}

TEST(Reproducible, GivesTheSameHashForMicroBatchesInAnyOrder) {
  const auto in_order = hashes_of_ranks(1, [](const Communicator& comm) { return train_reproducibly(comm, 10); });
  for (const int num_ranks : {1, 2, 4}) {
    EXPECT_EQ(in_order, hashes_of_ranks(num_ranks, [&](const Communicator& comm) {
                return train_reproducibly(comm, 10, {.seed = 5, .shuffle = true});
              }));
  }
}

TEST(Reproducible, IsNotWhatOtherSumsGive) {
  auto one = hashes_of_ranks(1, [](const Communicator& comm) { return train_otherwise(comm, kNumSteps); });
  one.merge(hashes_of_ranks(4, [](const Communicator& comm) { return train_otherwise(comm, kNumSteps); }));
  EXPECT_GT(one.size(), 1U) << "the other tests say nothing";
}

DdpOptions in_eight() { return DdpOptions().reproducible(true).micro_batches(8); }

TEST(Reproducible, RefusesCountsThatAreNoPowersOfTwo) {
  run_threads(3, [](const World& world) {
    torch::nn::Linear layer(2, 2);
    expect_parts(message_of<ConfigError>([&] { std::ignore = distribute(layer, world, in_eight().micro_batches(6)); }),
                 {"a power of two of ranks, the group has 3", "reproducible needs micro_batches", "found 6"});
  });
}

TEST(Reproducible, RefusesBatchNormByName) {
  run_threads(1, [](const World& world) {
    torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
    expect_parts(message_of<ConfigError>([&] { std::ignore = distribute(model, world, in_eight()); }),
                 {"\"1\", a torch::nn::BatchNorm1dImpl", "GroupNorm"});
  });
}

/// Draws random numbers by a function, which no list of modules shows.
TEST(Reproducible, RefusesRandomOperatorsByName) {
  run_threads(1, [](const World& world) {
    const auto model = std::make_shared<Noisy>(0.5);
    const auto ddp = distribute(model, world, in_eight());
    expect_parts(message_of<ConfigError>([&] { model->forward(at::ones({4, 2})).sum().backward(); }),
                 {"reproducible mode refuses aten::", "Set dropout to 0"});
    // Off, it draws nothing; and what a program draws between the steps is its own affair.
    const auto quiet = std::make_shared<Noisy>(0.0);
    const auto other = distribute(quiet, world, in_eight());
    quiet->forward(at::rand({4, 2})).sum().backward();
    torch::nn::Sequential early(torch::nn::Dropout(0.5), torch::nn::Linear(2, 2));
    expect_parts(message_of<ConfigError>([&] { std::ignore = distribute(early, world, in_eight()); }),
                 {"\"0\", a torch::nn::DropoutImpl", "Set its p to 0"});
  });
}

TEST(Reproducible, RefusesGradientsThatAreStillThere) {
  run_threads(1, [](const World& world) {
    torch::nn::Linear layer(2, 2);
    const auto ddp = distribute(layer, world, in_eight().micro_batches(1));
    layer(at::ones({4, 2})).sum().backward();
    expect_parts(message_of<ConfigError>([&] { layer(at::ones({4, 2})).sum().backward(); }), {"call zero_grad()"});
    layer->zero_grad(/*set_to_none=*/false);
    layer(at::ones({4, 2})).sum().backward();
    expect_parts(message_of<ConfigError>([&] { ddp.set_micro_batch(1); }),
                 {"expected a micro-batch of 0 to 0, found 1", "rank 0"});
  });
}

TEST(Reproducible, RefusesAnotherNumberOfThreadsAndNoSync) {
  run_threads(1, [](const World& world) {
    torch::nn::Linear layer(2, 2);
    const auto ddp = distribute(layer, world, in_eight());
    expect_parts(message_of<ConfigError>([&] { const auto guard = ddp.no_sync(); }), {"leave no_sync() out"});
    expect_parts(message_of<ConfigError>([&] { const auto join = ddp.join(); }), {"it has no join()"});
    expect_parts(message_of<ConfigError>([&] { ddp.set_bucket_bytes(100); }), {"their size cannot be set"});
    expect_parts(message_of<ConfigError>([&] { ddp.set_buckets({{0, 1}}); }), {"they cannot be set"});
    at::set_num_threads(2);
    expect_parts(message_of<ConfigError>([&] { layer(at::ones({4, 2})).sum().backward(); }),
                 {"set up for 1 threads", "now there are 2"});
    at::set_num_threads(1);
  });
}

}  // namespace
}  // namespace tessera::testing
