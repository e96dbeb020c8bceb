// Models, groups and worlds that come and go leave nothing behind.
#include <tessera/data_parallel/distribute.h>
#include <tessera/intercept/memory_count.h>

#include <torch/optim/adam.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <sstream>
#include <string>

#include "fsdp/chain.h"
#include "support/sanitized.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// Bytes of this process that no file backs: the heap's, those of stacks and of mappings.
std::int64_t resident_bytes() {
  malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

/// What a program has when it trains: both kinds of models, a group of their own, optimizers.
void train_once() {
  run_threads(2, [](const World& world) {
    const auto group = world.comm().split({0, 1}, "once");
    const auto sharded_model = filled_chain();
    const ShardedModel sharded = fully_shard(sharded_model, group, small_units());
    const auto model = filled_chain();
    const auto ddp = distribute(std::static_pointer_cast<torch::nn::Module>(model), world.comm());
    torch::optim::Adam optimizer(sharded.parameters(), 0.01);
    one_backward(*sharded_model, 0, world.rank(), 1);
    one_backward(*model, 0, world.rank(), 1);
    optimizer.step();
    const auto whole = sharded.gather();
  });
}

TEST(Leftovers, AreNoneOfTwoHundredWorlds) {
  const intercept::MemoryCount count;
  for (int i = 0; i < 30; ++i) train_once();  // until caches are full
  const std::int64_t tensors_before = count.live_bytes();
  const std::int64_t before = resident_bytes();
  for (int i = 0; i < 200; ++i) train_once();
  EXPECT_LE(count.live_bytes() - tensors_before, 0) << "bytes of tensors";
  // A sanitizer keeps what was freed.
  if (kSanitizerSlowdown == 1) {
    EXPECT_LE(resident_bytes() - before, kMiB);
  }
}

TEST(Leftovers, AreNoneOfAModelOnThisThread) {
  for (const bool shards : {false, true}) {
    const intercept::MemoryCount count;
    {
      const World world = init();
      const auto model = std::make_shared<torch::nn::LinearImpl>(500, 500);
      std::optional<ShardedModel> sharded;
      std::optional<DistributedModel> ddp;
      if (shards) {
        sharded.emplace(fully_shard(std::static_pointer_cast<torch::nn::Module>(model), world));
      } else {
        ddp.emplace(distribute(std::static_pointer_cast<torch::nn::Module>(model), world));
      }
      model->forward(torch::ones({1, 500})).sum().backward();
      EXPECT_GT(count.live_bytes(), 500 * 500 * 4);
    }
    EXPECT_LT(count.live_bytes(), 500 * 4);
  }
}

TEST(Leftovers, AreNoneOfGroups) {
  run_threads(2, [](const World& world) {
    const auto use = [&] { world.comm().split({0, 1}, "again").barrier(); };
    for (int i = 0; i < 10; ++i) use();
    const std::int64_t before = resident_bytes();
    world.comm().barrier();
    for (int i = 0; i < 200; ++i) use();
    world.comm().barrier();
    if (kSanitizerSlowdown == 1) {
      EXPECT_LE(resident_bytes() - before, kMiB);
    }
  });
}

}  // namespace
}  // namespace tessera::testing
