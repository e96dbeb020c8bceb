#include <tessera/core/error.h>
#include <tessera/shard/placement.h>
#include <tessera/shard/redistribution.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "support/error_message.h"

namespace tessera {
namespace {

using Placements = std::vector<Placement>;
using Sizes = std::vector<std::int64_t>;

TEST(Placement, CutsInCeilingSizedParts) {
  EXPECT_EQ(Placement::shard(0).local_sizes(8, 3), (Sizes{3, 3, 2}));
  EXPECT_EQ(Placement::shard(0).local_sizes(4, 3), (Sizes{2, 2, 0}));
  EXPECT_EQ(Placement::shard(0).local_sizes(1, 4), (Sizes{1, 0, 0, 0}));
  EXPECT_EQ(Placement::shard(0).local_sizes(0, 2), (Sizes{0, 0}));
  EXPECT_EQ(Placement::shard(0).local_sizes(50257, 4), (Sizes{12565, 12565, 12565, 12562}));
  // Eight heads of 64 on three ranks; the same in each of three blocks.
  EXPECT_EQ(Placement::shard(0, 1, 64).local_sizes(512, 3), (Sizes{192, 192, 128}));
  EXPECT_EQ(Placement::shard(0, 3, 64).local_sizes(1536, 3), (Sizes{576, 576, 384}));
  EXPECT_EQ(Placement::shard(0, 3, 64).indices(1536, 3, 2), (std::vector<Range>{{384, 128}, {896, 128}, {1408, 128}}));
}

TEST(Placement, CoversEveryIndexOnce) {
  for (std::int64_t size = 0; size < 40; ++size) {
    for (const int parts : {1, 2, 3, 5, 8}) {
      for (const std::int64_t blocks : {1, 2, 3}) {
        for (const std::int64_t granule : {1, 2, 4}) {
          if (size % blocks != 0) continue;
          std::vector<int> held(static_cast<std::size_t>(size), 0);
          for (int part = 0; part < parts; ++part) {
            std::int64_t count = 0;
            for (const Range& range : Placement::shard(0, blocks, granule).indices(size, parts, part)) {
              for (std::int64_t i = range.start; i < range.end(); ++i) ++held[static_cast<std::size_t>(i)], ++count;
            }
            EXPECT_EQ(count, Placement::shard(0, blocks, granule).local_size(size, parts, part));
          }
          EXPECT_EQ(held, std::vector<int>(static_cast<std::size_t>(size), 1));
        }
      }
    }
  }
}

TEST(Placement, OfRequirementB) {
  EXPECT_EQ(TensorPartition::of(10, 1, 4, 0), (TensorPartition{1, 0, 3, 4, 0}));
  EXPECT_EQ(TensorPartition::of(10, 1, 4, 3), (TensorPartition{1, 9, 10, 4, 3}));
  EXPECT_EQ(TensorPartition::of(2, 0, 4, 3).size(), 0);
  testing::expect_parts(testing::message_of<ConfigError>([] { TensorPartition::of(2, 0, 4, 4); }),
                        {"there is no rank 4 of 4 partitions"});
}

TEST(Placement, SaysWhatDoesNotFit) {
  const auto message = [](const auto& call) { return testing::message_of<ConfigError>(call); };
  testing::expect_parts(message([] { Placement::shard(-1); }), {"a dimension of at least 0", "shard(-1)"});
  testing::expect_parts(message([] { Placement::shard(0, 0); }), {"0 blocks"});
  testing::expect_parts(message([] { (void)Placement::shard(1, 3).chunk(8, 2); }),
                        {"dimension 1 has 8 indices, which 3 blocks of one size do not divide"});
  testing::expect_parts(message([] { slice_at({4}, {Placement::shard(1)}, {{2}, {0}}); }),
                        {"a tensor of 1 dimensions cannot be shard(1)"});
  testing::expect_parts(message([] { slice_at({4}, {}, {{2}, {0}}); }),
                        {"a mesh of 1 axes needs a placement for each"});
}

TEST(Placement, OfSeveralAxesDividesWhatEarlierOnesLeave) {
  // Rows 0..4 of 10 to the first rank of axis 0; of these, rows 3 and 4 to the second of axis 1.
  const Slice slice = slice_at({10, 2}, {Placement::shard(0), Placement::shard(0)}, {{2, 2}, {0, 1}});
  EXPECT_EQ(slice, Slice::whole({10, 2}).narrow(0, {3, 2}));
}

/// The fewest elements by which any sequence of steps reaches `to`, found without a queue, an order or a limit on what
/// lies between: repeated until no sequence gets shorter.
std::int64_t exhaustive(const Redistribution& redistribution, const Placements& from, const Placements& to,
                        const std::vector<Placements>& all) {
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 2;
  std::map<Placements, std::int64_t> cost;
  for (const Placements& placements : all) cost[placements] = kFar;
  cost[from] = 0;
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (const auto& [placements, reached] : cost) {
      if (reached == kFar) continue;
      for (const auto& [next, known] : cost) {
        std::vector<std::optional<RedistributionStep>> steps{redistribution.exchange(placements, next)};
        std::size_t num_changed = 0;
        std::size_t axis = 0;
        for (std::size_t i = 0; i < next.size(); ++i) {
          if (next[i] != placements[i]) ++num_changed, axis = i;
        }
        if (num_changed == 1) steps.push_back(redistribution.step(placements, axis, next[axis]));
        for (const auto& step : steps) {
          if (!step || reached + step->num_received >= known) continue;
          cost[next] = reached + step->num_received;
          shorter = true;
        }
      }
    }
  }
  return cost.at(to);
}

TEST(Redistribution, SendsNoMoreThanAnExhaustiveSearchFinds) {
  std::mt19937 random(19);
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  int num_searched = 0;
  while (num_searched < 200) {
    std::vector<int> axes;
    for (int i = 1 + draw(2); i > 0; --i) axes.push_back(1 + draw(4));
    Sizes shape;
    for (int i = 1 + draw(2); i > 0; --i) shape.push_back(6 * draw(3) + (draw(2) != 0 ? draw(6) : 0));
    const Redistribution redistribution(shape, axes);
    const auto drawn = [&] {
      for (;;) {
        Placements placements;
        for (std::size_t axis = 0; axis < axes.size(); ++axis) {
          const int kind = draw(4);
          placements.push_back(kind == 0 ? Placement::replicate()
                               : kind == 1
                                   ? Placement::partial()
                                   : Placement::shard(draw(static_cast<int>(shape.size())), 1 + draw(3), 1 + draw(2)));
        }
        if (redistribution.fits(placements)) return placements;
      }
    };
    const Placements from = drawn();
    const Placements to = drawn();
    std::vector<Placements> all{{}};
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      std::vector<Placements> longer;
      for (const Placements& placements : all) {
        for (const Placement& next : redistribution.candidates(from, to)) {
          longer.push_back(placements);
          longer.back().push_back(next);
        }
      }
      all = std::move(longer);
    }
    std::erase_if(all, [&](const Placements& placements) { return !redistribution.fits(placements); });
    std::int64_t planned = 0;
    for (const auto& step : redistribution.plan(from, to)) planned += step.num_received;
    ASSERT_EQ(planned, exhaustive(redistribution, from, to, all))
        << placements_text(from) << " to " << placements_text(to);
    ++num_searched;
  }
}

TEST(Redistribution, TakesTheShorterOfTwoWays) {
  const Redistribution redistribution({8, 8}, {4});
  const auto plan = redistribution.plan({Placement::partial()}, {Placement::replicate()});
  ASSERT_EQ(plan.size(), 1) << "one all-reduce, not a reduce-scatter and an all-gather";
  EXPECT_EQ(plan[0].num_received, 2 * 3 * 64);
  EXPECT_TRUE(redistribution.plan({Placement::shard(1)}, {Placement::shard(1)}).empty());
  EXPECT_EQ(redistribution.plan({Placement::shard(0)}, {Placement::shard(1)})[0].num_received, 64 - 16);
}

TEST(Redistribution, CutsASumBeforeItIsSentAlongAnotherAxis) {
  // Reduce-scatter along axis 0 leaves half of the elements to gather along axis 1.
  const Redistribution redistribution({8}, {2, 2});
  const auto plan =
      redistribution.plan({Placement::partial(), Placement::partial()}, {Placement::shard(0), Placement::replicate()});
  ASSERT_EQ(plan.size(), 2);
  EXPECT_EQ(plan[0].axis, std::size_t{0});
}

}  // namespace
}  // namespace tessera
