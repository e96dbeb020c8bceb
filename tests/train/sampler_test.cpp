#include <tessera/core/error.h>
#include <tessera/train/sampler.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/error_message.h"

namespace tessera::testing {
namespace {

using Samples = std::vector<std::int64_t>;

/// The global batches of an epoch as `num_ranks` ranks see them, each rank's part after the former's.
std::vector<Samples> epoch_of(std::int64_t num_samples, int num_ranks, const SamplerOptions& options, int epoch = 0) {
  std::vector<Samples> batches;
  for (int rank = 0; rank < num_ranks; ++rank) {
    Sampler sampler(num_samples, rank, num_ranks, options);
    for (int before = 0; before < epoch; ++before) {
      while (sampler.next()) {
      }
    }
    std::size_t step = 0;
    for (auto batch = sampler.next(); batch; batch = sampler.next(), ++step) {
      EXPECT_EQ(batch->epoch, epoch);
      if (rank == 0) batches.emplace_back();
      batches.at(step).insert(batches.at(step).end(), batch->samples.begin(), batch->samples.end());
    }
    EXPECT_EQ(step, batches.size()) << "every rank has as many batches";
  }
  return batches;
}

Samples joined(const std::vector<Samples>& batches) {
  Samples all;
  for (const Samples& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

TEST(Sampler, HasOneOrderForEveryNumberOfRanks) {
  const auto options = SamplerOptions().seed(5).global_batch(12);
  for (const int epoch : {0, 1}) {
    const auto alone = epoch_of(100, 1, options, epoch);
    ASSERT_EQ(alone.size(), 8U);
    for (const int num_ranks : {2, 3, 4, 8}) EXPECT_EQ(epoch_of(100, num_ranks, options, epoch), alone) << num_ranks;
  }
  EXPECT_NE(epoch_of(100, 1, options, 0), epoch_of(100, 1, options, 1));
}

TEST(Sampler, GivesEachSampleOnce) {
  for (const char* split : {"contiguous", "strided"}) {
    for (const int num_ranks : {1, 2, 3, 4, 8}) {
      auto all = joined(epoch_of(101, num_ranks, SamplerOptions().global_batch(10).split(split).last_batch("keep")));
      std::sort(all.begin(), all.end());
      Samples expected(101);
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(all, expected) << split << " " << num_ranks;
    }
  }
}

TEST(Sampler, TakesStretchesOrEveryNth) {
  const auto parts = [](const char* split) {
    std::vector<Samples> found;
    for (int rank = 0; rank < 3; ++rank) {
      Sampler sampler(7, rank, 3, SamplerOptions().order("sequential").global_batch(7).split(split));
      found.push_back(sampler.next()->samples);
    }
    return found;
  };
  EXPECT_EQ(parts("contiguous"), (std::vector<Samples>{{0, 1, 2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(parts("strided"), (std::vector<Samples>{{0, 3, 6}, {1, 4}, {2, 5}}));
}

TEST(Sampler, DropsOrKeepsTheLastBatch) {
  const auto options = SamplerOptions().order("sequential").global_batch(4);
  EXPECT_EQ(joined(epoch_of(10, 2, options)), (Samples{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(joined(epoch_of(10, 2, SamplerOptions(options).last_batch("keep"))),
            (Samples{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  Sampler last(9, 1, 2, SamplerOptions(options).last_batch("keep"));
  EXPECT_EQ(last.num_batches_left(), 3);
  last.next();
  last.next();
  const auto batch = last.next();
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->size, 1);
  EXPECT_EQ(batch->first, 8);
  EXPECT_TRUE(batch->samples.empty()) << "rank 0 has the only sample";
  EXPECT_FALSE(last.next().has_value());
  EXPECT_EQ(last.epoch(), 1);
  EXPECT_EQ(last.num_batches_left(), 3);
}

TEST(Sampler, MayChangeItsBatchSizeInTheMiddleOfAnEpoch) {
  Sampler first(10, 0, 1, SamplerOptions().global_batch(4));
  Samples seen = first.next()->samples;
  Sampler second(10, 0, 1, SamplerOptions().global_batch(3));
  second.restore(first.state());
  while (const auto batch = second.next()) seen.insert(seen.end(), batch->samples.begin(), batch->samples.end());
  EXPECT_EQ(seen, joined(epoch_of(10, 1, SamplerOptions())));
}

TEST(Sampler, RefusesWhatCannotWorkWithAllFaultsAtOnce) {
  expect_parts(message_of<ConfigError>([] { Sampler(0, 3, 2, SamplerOptions().global_batch(1)); }),
               {"0 samples", "rank 3 of 2", "global_batch of 1 leaves some of 2 ranks without samples"});
  expect_parts(message_of<ConfigError>([] { Sampler(5, 0, 1, SamplerOptions().global_batch(6)); }),
               {"global_batch of 6", "5 samples", "drop"});
  EXPECT_NO_THROW(Sampler(5, 0, 1, SamplerOptions().global_batch(6).last_batch("keep")));
  EXPECT_THROW(Sampler(5, 0, 1, SamplerOptions().global_batch(0)), ConfigError);
  EXPECT_THROW(Sampler(5, 0, 1, SamplerOptions().order("random")), ConfigError);
  EXPECT_THROW(Sampler(5, -1, 1), ConfigError);
}

TEST(Sampler, KnowsTheLargestPartOfARank) {
  for (int rank = 0; rank < 3; ++rank) {
    Sampler sampler(100, rank, 3, SamplerOptions().global_batch(8));
    EXPECT_EQ(sampler.largest_part(), static_cast<std::int64_t>(sampler.next()->samples.size())) << rank;
  }
}

}  // namespace
}  // namespace tessera::testing
