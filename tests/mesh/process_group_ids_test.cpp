#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>
#include "factorisations.h"

#include <gtest/gtest.h>

#include <set>

namespace tessera {
namespace {

using testing::all_orders;
using testing::for_each_factorisation;

TEST(ProcessGroupIds, NamesLinesByTheirFirstRank) {
  const ProcessGroupIds ids(AxisLayout({{"dp", 2}, {"tp", 4}}));
  EXPECT_EQ(ids.id_of("dp", 7), "dp.3");
  EXPECT_EQ(ids.id_of("tp", 7), "tp.1");
  EXPECT_EQ(ids.lines_through(7), (std::vector<std::string>{"dp.3", "tp.1"}));
  EXPECT_EQ(ids.all_lines(), (std::vector<std::string>{"dp.0", "dp.1", "dp.2", "dp.3", "tp.0", "tp.1"}));
  EXPECT_EQ(ids.num_lines(), 6);
  EXPECT_EQ(ids.ranks_of("dp.3"), (std::vector<int>{3, 7}));
}

TEST(ProcessGroupIds, NamesSlicesAlongSeveralAxesAlikeHoweverListed) {
  const ProcessGroupIds ids(AxisLayout({{"dp", 2}, {"cp", 3}, {"tp", 2}}));
  EXPECT_EQ(ids.slice_id_of({"dp", "tp"}, 2), "dp+tp.1");
  EXPECT_EQ(ids.slice_id_of({"tp", "dp"}, 2), "dp+tp.1");
  EXPECT_EQ(ids.ranks_of("dp+tp.1"), (std::vector<int>{2, 3, 8, 9}));
  EXPECT_EQ(ids.slice_id_of({}, 5), "self.5");
  EXPECT_EQ(ids.ranks_of("self.5"), (std::vector<int>{5}));
}

TEST(ProcessGroupIds, EveryLineOfEveryLayoutIsNamedOnceAndFoundAgain) {
  for (int num_ranks : {1, 7, 12, 16, 30}) {
    for_each_factorisation(num_ranks, 3, [&](const std::vector<int>& sizes) {
      for (const auto& order : all_orders({"a", "b", "c"})) {
        const ProcessGroupIds ids(AxisLayout({{"a", sizes[0]}, {"b", sizes[1]}, {"c", sizes[2]}}, order));
        const auto names = ids.all_lines();
        ASSERT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
        ASSERT_EQ(static_cast<int>(names.size()), ids.num_lines());
        for (const auto& name : names) {
          for (int rank : ids.ranks_of(name)) {
            ASSERT_EQ(ids.id_of(name.substr(0, 1), rank), name);
          }
        }
      }
    });
  }
}

TEST(ProcessGroupIds, RefusesNamesThatAreNotThere) {
  const ProcessGroupIds ids(AxisLayout({{"dp", 2}, {"tp", 4}}));
  for (const char* name : {"", "dp", "dp.", "dp.x", "dp.1x", "dp.-1", "dp.4", "pp.0", "dp+.0", "dp+dp.0", "self.8"}) {
    EXPECT_THROW(ids.ranks_of(name), ConfigError) << name;
  }
}

}  // namespace
}  // namespace tessera
