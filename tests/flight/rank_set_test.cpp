#include <tessera/flight/rank_set.h>

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace tessera::flight {
namespace {

TEST(RankSet, WritesRangesAndStrides) {
  EXPECT_EQ(ranks_text({}), "");
  EXPECT_EQ(ranks_text({5}), "5");
  EXPECT_EQ(ranks_text({1, 0}), "0,1");
  EXPECT_EQ(ranks_text({3, 2, 1, 0}), "0-3");
  EXPECT_EQ(ranks_text({0, 4, 8, 12}), "0-12:4");
  EXPECT_EQ(ranks_text({0, 1, 3}), "0,1,3");
  EXPECT_EQ(ranks_text({0, 1, 2, 7, 9, 11, 20}), "0-2,7-11:2,20");
}

TEST(RankSet, ReadsWhatItWrote) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::set<int> ranks;
    for (std::size_t i = random() % 12; i > 0; --i) ranks.insert(static_cast<int>(random() % 24));
    const std::vector<int> list(ranks.begin(), ranks.end());
    EXPECT_EQ(parse_ranks(ranks_text(list)), list) << ranks_text(list);
  }
}

TEST(RankSet, ReadsUpToTheFault) {
  EXPECT_EQ(parse_ranks("0-3,7x"), (std::vector<int>{0, 1, 2, 3, 7}));
  EXPECT_EQ(parse_ranks("2,"), std::vector<int>{2});
  EXPECT_EQ(parse_ranks("nonsense"), std::vector<int>{});
  EXPECT_EQ(parse_ranks("4-1"), std::vector<int>{});
  EXPECT_EQ(parse_ranks("0-2000000000"), std::vector<int>{}) << "damage must not fill the memory";
  EXPECT_EQ(parse_ranks("0-8:0"), std::vector<int>{});
}

}  // namespace
}  // namespace tessera::flight
