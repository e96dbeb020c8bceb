// Random models, sharded in random ways, against one process. A failure prints its seed: to run it alone,
//   TESSERA_RANDOM_MODEL=SEED fsdp_random_models_tests
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <string>

#include "fsdp/random_models/random_check.h"
#include "fsdp/random_models/random_model.h"

namespace tessera::testing {
namespace {

constexpr std::uint64_t kNumRanges = 20;
constexpr std::uint64_t kSeedsInRange = 26;
// Of each kind, in each range: over all ranges that makes a hundred.
constexpr int kLeastOfAKind = 5;

std::optional<std::uint64_t> wanted_seed() {
  const char* const text = std::getenv("TESSERA_RANDOM_MODEL");
  return text ? std::optional<std::uint64_t>(std::stoull(text)) : std::nullopt;
}

struct Counts {
  int shares = 0;
  int branches = 0;
  int freezes = 0;
  int leaves_unused = 0;
};

void check(std::uint64_t seed, Counts& counts) {
  const RandomCase one = make_random_case(seed);
  try {
    const Expected expected = train_alone(one);
    run_threads(one.num_ranks, [&](const World& world) { require_same_in_shards(one, expected, world); });
    counts.shares += expected.shares ? 1 : 0;
    counts.branches += expected.branches ? 1 : 0;
    counts.freezes += expected.freezes ? 1 : 0;
    counts.leaves_unused += expected.leaves_unused ? 1 : 0;
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << "\n"
                  << one.text() << "\n"
                  << make_random_model(seed)->text() << "alone: TESSERA_RANDOM_MODEL=" << seed;
  }
}

class RandomModels : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomModels, TrainInShardsAsInOneProcess) {
  const auto wanted = wanted_seed();
  Counts counts;
  for (std::uint64_t seed = GetParam() * kSeedsInRange; seed < (GetParam() + 1) * kSeedsInRange; ++seed) {
    if (!wanted || *wanted == seed) check(seed, counts);
  }
  if (wanted) return;
  EXPECT_GE(counts.shares, kLeastOfAKind);
  EXPECT_GE(counts.branches, kLeastOfAKind);
  EXPECT_GE(counts.freezes, kLeastOfAKind);
  EXPECT_GE(counts.leaves_unused, kLeastOfAKind);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomModels, ::testing::Range<std::uint64_t>(0, kNumRanges),
                         [](const auto& one) { return "Range" + std::to_string(one.param); });

}  // namespace
}  // namespace tessera::testing
