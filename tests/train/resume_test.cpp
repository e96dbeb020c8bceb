// Runs that are killed at a random step and go on with another number of ranks, as arithmetic: many of them. With real
// processes: process/killed_run_test.cpp.
#include <tessera/train/sampler.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace tessera::testing {
namespace {

constexpr int kWorldSizes[] = {1, 2, 3, 4, 8};

/// What the ranks of one attempt saw of the steps that were saved.
struct Attempt {
  std::vector<std::int64_t> seen;
  SamplerState saved;
  bool reached_the_end;
};

/// All ranks step together; after each step the state is saved. The kill comes after `num_steps`, in the middle of a
/// step whose samples are lost with the weights that they changed.
Attempt run_until_killed(const SamplerState& start, int num_ranks, const SamplerOptions& options, int num_steps) {
  std::vector<Sampler> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back(start.num_samples, rank, num_ranks, options);
    ranks.back().restore(start);
  }
  Attempt attempt{{}, start, false};
  for (int step = 0; step < num_steps; ++step) {
    std::vector<std::int64_t> samples;
    for (Sampler& sampler : ranks) {
      const auto batch = sampler.next();
      if (!batch) {
        attempt.reached_the_end = true;
        continue;
      }
      samples.insert(samples.end(), batch->samples.begin(), batch->samples.end());
    }
    if (attempt.reached_the_end) break;
    attempt.seen.insert(attempt.seen.end(), samples.begin(), samples.end());
    for (const Sampler& sampler : ranks) EXPECT_EQ(sampler.state(), ranks[0].state()) << "the ranks agree";
    attempt.saved = ranks[0].state();
  }
  for (Sampler& sampler : ranks) sampler.next();  // begun, never saved
  return attempt;
}

TEST(Resume, SeesEachSampleOnceWhenKilledAnywhereAndResumedOnAnyNumberOfRanks) {
  std::mt19937 random(2024);
  const auto draw = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random);
  };
  int num_kills = 0;
  for (int run = 0; run < 400; ++run) {
    const std::int64_t num_samples = draw(8, 700);
    const std::int64_t seed = draw(-1000, 1000);
    const std::int64_t epoch = draw(0, 3);
    const char* split = draw(0, 1) == 0 ? "contiguous" : "strided";
    SamplerState state{seed, epoch, 0, num_samples, true};
    std::vector<std::int64_t> seen;
    for (bool over = false; !over;) {
      const int num_ranks = kWorldSizes[draw(0, 4)];
      const auto options = SamplerOptions().seed(seed).global_batch(draw(8, 32)).split(split).last_batch("keep");
      const Attempt attempt = run_until_killed(state, num_ranks, options, static_cast<int>(draw(0, 12)));
      seen.insert(seen.end(), attempt.seen.begin(), attempt.seen.end());
      state = SamplerState::from_values(attempt.saved.to_values());
      over = attempt.reached_the_end;
      num_kills += over ? 0 : 1;
    }
    std::sort(seen.begin(), seen.end());
    std::vector<std::int64_t> expected(static_cast<std::size_t>(num_samples));
    std::iota(expected.begin(), expected.end(), 0);
    ASSERT_EQ(seen, expected) << "run " << run;
  }
  EXPECT_GT(num_kills, 400) << "the runs were killed, more than once each on average";
}

TEST(Resume, GoesThroughEveryPairOfWorldSizes) {
  for (const int before : kWorldSizes) {
    for (const int after : kWorldSizes) {
      for (int kill = 0; kill <= 12; ++kill) {
        const auto options = SamplerOptions().seed(kill).global_batch(8);
        const Attempt first = run_until_killed({kill, 0, 0, 96, true}, before, options, kill);
        const Attempt second = run_until_killed(first.saved, after, options, 1000);
        std::vector<std::int64_t> seen = first.seen;
        seen.insert(seen.end(), second.seen.begin(), second.seen.end());
        // Not only each sample once, but in the order of a run that was never killed.
        EXPECT_EQ(seen, run_until_killed({kill, 0, 0, 96, true}, 1, options, 1000).seen) << before << " " << after;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
