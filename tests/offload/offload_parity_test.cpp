// Models of which parts lie in files, or in host memory, train as those in memory do: the same bits.
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/offload/offload.h>
#include <tessera/optim/adamw.h>
#include <tessera/optim/clip_grad_norm.h>

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/training.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 30;

struct Case {
  std::string name;
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  int num_ranks = 2;
  bool use_orig_params = false;
  int num_micro_batches = 1;
  bool averages_each = false;
  bool amsgrad = false;
  c10::ScalarType param_dtype = c10::ScalarType::Undefined;
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

FsdpOptions fsdp_of(const Case& tried) {
  return FsdpOptions()
      .strategy(tried.strategy)
      .auto_wrap(wrap_by_size(100))
      .min_num_params(0)
      .use_orig_params(tried.use_orig_params)
      .param_dtype(tried.param_dtype);
}

OffloadTraining training_of(const Case& tried) {
  OffloadTraining training;
  training.num_ranks = tried.num_ranks;
  training.num_steps = kSteps;
  training.num_micro_batches = tried.num_micro_batches;
  training.averages_each = tried.averages_each;
  training.amsgrad = tried.amsgrad;
  training.fsdp = fsdp_of(tried);
  return training;
}

class OffloadParity : public ::testing::TestWithParam<Case> {};

TEST_P(OffloadParity, HasTheBitsOfATrainingInMemory) {
  const OffloadTraining in_memory = training_of(GetParam());
  const Weights expected = train(in_memory);
  for (int tiers = 0; tiers < 8; ++tiers) {
    const auto tier = [&](int bit) { return (tiers >> bit) % 2 == 0 ? Tier::kHost : Tier::kFile; };
    if (tier(1) == Tier::kFile && GetParam().use_orig_params) continue;  // refused: see OffloadRefusals
    const TemporaryFolder folder;
    OffloadTraining offloaded = in_memory;
    offloaded.offload = OffloadOptions().parameters(tier(0)).gradients(tier(1)).states(tier(2)).folders(
        {folder.file("a"), folder.file("b")});
    expect_same_bits(train(offloaded), expected, "tiers " + std::to_string(tiers));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, OffloadParity,
    ::testing::Values(Case{.name = "Alone", .num_ranks = 1}, Case{.name = "FullShard"},
                      Case{.name = "FullShardOn4", .num_ranks = 4},
                      Case{.name = "FullShardBySlices", .use_orig_params = true, .amsgrad = true},
                      Case{.name = "MicroBatches", .num_micro_batches = 3},
                      Case{.name = "MicroBatchesAveragedEach", .num_micro_batches = 3, .averages_each = true},
                      Case{.name = "ShardGradOp", .strategy = ShardingStrategy::kShardGradOp},
                      Case{.name = "Zero1", .strategy = ShardingStrategy::kZero1},
                      Case{.name = "NoShard", .strategy = ShardingStrategy::kNoShard},
                      Case{.name = "LowPrecision", .param_dtype = c10::kBFloat16}),
    name_of);

TEST(OffloadParity, HoldsForShardsOfManyPieces) {
  OffloadTraining training;
  training.num_steps = 3;
  training.width = 2100;  // a weight of 4.4 million elements: three pieces on each of two ranks
  training.fsdp.auto_wrap(wrap_by_size(100)).max_unit_bytes(0).min_num_params(0);
  const Weights expected = train(training);
  const TemporaryFolder folder;
  training.offload =
      OffloadOptions().parameters(Tier::kFile).gradients(Tier::kFile).states(Tier::kFile).folders({folder.file("a")});
  expect_same_bits(train(training), expected, "many pieces");
}

TEST(OffloadParity, HoldsWithoutOverlapAndWithoutMemoryToSpare) {
  OffloadTraining training;
  training.num_steps = 3;
  training.width = 1500;
  training.fsdp.auto_wrap(wrap_by_size(100)).max_unit_bytes(0).min_num_params(0);
  const Weights expected = train(training);
  const TemporaryFolder folder;
  const OffloadOptions files = OffloadOptions()
                                   .parameters(Tier::kFile)
                                   .gradients(Tier::kFile)
                                   .states(Tier::kFile)
                                   .folders({folder.file("a"), folder.file("b")});
  training.offload = OffloadOptions(files).overlap(false);
  expect_same_bits(train(training), expected, "without overlap");
  training.offload =
      OffloadOptions(files).host_bytes(std::int64_t{41} << 20);  // a little more than two pieces of a step
  expect_same_bits(train(training), expected, "without memory to spare");
}

TEST(OffloadParity, HoldsForOptimizersThatKnowNothingOfIt) {
  OffloadTraining training;
  training.num_steps = 4;
  training.fsdp.auto_wrap(wrap_by_size(100)).min_num_params(0);
  training.uses_sgd = true;
  const Weights expected = train(training);
  const TemporaryFolder folder;
  training.offload = OffloadOptions().parameters(Tier::kFile).folders({folder.file("a")});
  expect_same_bits(train(training), expected, "SGD writes to parts whose bytes come for it");
}

}  // namespace
}  // namespace tessera::testing
