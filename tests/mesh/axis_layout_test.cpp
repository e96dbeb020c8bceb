#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>
#include "factorisations.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace tessera {
namespace {

using testing::all_orders;
using testing::for_each_factorisation;

const std::vector<std::string> kNames{"a", "b", "c", "d"};

std::vector<AxisSpec> specs(const std::vector<int>& sizes) {
  std::vector<AxisSpec> axes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    axes.push_back({kNames[i], sizes[i]});
  }
  return axes;
}

void for_each_layout(int max_ranks, int num_axes, const std::function<void(const AxisLayout&)>& visit) {
  const std::vector<std::string> names(kNames.begin(), kNames.begin() + num_axes);
  for (int ranks = 1; ranks <= max_ranks; ++ranks) {
    for_each_factorisation(ranks, num_axes, [&](const std::vector<int>& sizes) {
      for (const auto& order : all_orders(names)) {
        visit(AxisLayout(specs(sizes), order));
      }
    });
  }
}

std::vector<std::vector<int>> subsets(int num_axes) {
  std::vector<std::vector<int>> all;
  for (int bits = 0; bits < 1 << num_axes; ++bits) {
    std::vector<int> axes;
    for (int axis = 0; axis < num_axes; ++axis) {
      if ((bits >> axis & 1) != 0) {
        axes.push_back(axis);
      }
    }
    all.push_back(axes);
  }
  return all;
}

TEST(AxisLayout, CoordinatesAreABijectionInEveryLayout) {
  for (int num_axes = 1; num_axes <= 4; ++num_axes) {
    for_each_layout(num_axes == 4 ? 24 : 64, num_axes, [](const AxisLayout& layout) {
      std::set<std::vector<int>> seen;
      for (int rank = 0; rank < layout.num_ranks(); ++rank) {
        const auto coordinates = layout.coordinates(rank);
        ASSERT_TRUE(seen.insert(coordinates).second);
        ASSERT_EQ(layout.rank_at(coordinates), rank);
      }
    });
  }
}

TEST(AxisLayout, LinesPartitionTheRanksInEveryLayout) {
  for_each_layout(48, 3, [](const AxisLayout& layout) {
    for (int axis = 0; axis < layout.num_axes(); ++axis) {
      std::set<int> seen;
      int previous_start = -1;
      for (int number = 0; number < layout.num_lines(axis); ++number) {
        const auto line = layout.line_at(axis, number);
        ASSERT_GT(line.start, previous_start);
        previous_start = line.start;
        for (int index = 0; index < line.count; ++index) {
          const int rank = line.rank_at(index);
          ASSERT_TRUE(seen.insert(rank).second);
          ASSERT_EQ(layout.coordinate(axis, rank), index);
          ASSERT_EQ(layout.line_number(axis, rank), number);
          ASSERT_EQ(layout.line(axis, rank), line);
        }
      }
      ASSERT_EQ(static_cast<int>(seen.size()), layout.num_ranks());
    }
  });
}

void expect_slices_partition(const AxisLayout& layout, const std::vector<int>& axes) {
  const auto others = layout.other_axes(axes);
  std::set<int> seen;
  int previous_start = -1;
  for (int number = 0; number < layout.num_slices(axes); ++number) {
    const auto slice = layout.slice_at(axes, number);
    ASSERT_EQ(slice.number(), number);
    const auto ranks = slice.ranks();
    ASSERT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
    ASSERT_GT(ranks.front(), previous_start);
    previous_start = ranks.front();
    for (int index = 0; index < slice.size(); ++index) {
      const int rank = slice.rank_at(index);
      ASSERT_TRUE(seen.insert(rank).second);
      ASSERT_EQ(slice.index_of(rank), index);
      ASSERT_EQ(slice.rank_at(slice.layout().coordinates(index)), rank);
      for (int axis : others) {
        ASSERT_EQ(layout.coordinate(axis, rank), layout.coordinate(axis, ranks.front()));
      }
    }
    for (int rank = -1; rank <= layout.num_ranks(); ++rank) {
      ASSERT_EQ(slice.contains(rank), std::binary_search(ranks.begin(), ranks.end(), rank));
    }
  }
  ASSERT_EQ(static_cast<int>(seen.size()), layout.num_ranks());
}

TEST(AxisLayout, SlicesAlongEverySetOfAxesPartitionTheRanks) {
  for (int num_ranks : {1, 6, 8, 12}) {
    for_each_factorisation(num_ranks, 4, [](const std::vector<int>& sizes) {
      for (const auto& order : all_orders(kNames)) {
        const AxisLayout layout(specs(sizes), order);
        for (const auto& axes : subsets(4)) {
          ASSERT_NO_FATAL_FAILURE(expect_slices_partition(layout, axes));
        }
      }
    });
  }
}

TEST(AxisLayout, LastDeclaredAxisVariesFastestByDefault) {
  const AxisLayout layout({{"dp", 4}, {"tp", 2}});
  EXPECT_EQ(layout.coordinates(1), (std::vector<int>{0, 1}));
  EXPECT_EQ(layout.coordinates(2), (std::vector<int>{1, 0}));
  EXPECT_EQ(layout.line(layout.axis_index("dp"), 5), (AxisLine{1, 2, 4}));
  EXPECT_EQ(layout.order(), (std::vector<std::string>{"dp", "tp"}));
}

TEST(AxisLayout, OrderDecidesWhichAxisVariesFastest) {
  const AxisLayout layout({{"dp", 4}, {"tp", 2}}, {"tp", "dp"});
  EXPECT_EQ(layout.coordinates(1), (std::vector<int>{1, 0}));
  EXPECT_EQ(layout.stride(layout.axis_index("tp")), 4);
}

TEST(AxisLayout, NumbersAxesOfASubLayoutAsListed) {
  const AxisLayout layout({{"a", 2}, {"b", 3}, {"c", 4}});
  const auto sub = layout.sub_layout({2, 0});
  EXPECT_EQ(sub.axes(), (std::vector<AxisSpec>{{"c", 4}, {"a", 2}}));
  EXPECT_EQ(sub.order(), (std::vector<std::string>{"a", "c"}));
}

TEST(AxisLayout, RefusesWithEveryFaultAtOnce) {
  try {
    const AxisLayout layout({{"dp", 0}, {"dp", 2}, {"t.p", 2}}, {"dp"});
    FAIL() << "accepted " << layout.num_ranks() << " ranks";
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("axis dp has size 0"), std::string::npos) << message;
    EXPECT_NE(message.find("axis dp is there twice"), std::string::npos) << message;
    EXPECT_NE(message.find("\"t.p\" is no axis name"), std::string::npos) << message;
    EXPECT_NE(message.find("the order is {dp}"), std::string::npos) << message;
  }
}

TEST(AxisLayout, RefusesMoreRanksThanAnIntCounts) {
  EXPECT_THROW(AxisLayout({{"a", 1 << 20}, {"b", 1 << 20}, {"c", 1 << 30}}), ConfigError);
}

TEST(AxisLayout, RefusesWhatIsNotThere) {
  const AxisLayout layout({{"dp", 4}, {"tp", 2}});
  EXPECT_THROW(layout.axis_index("pp"), ConfigError);
  EXPECT_THROW(layout.size(2), ConfigError);
  EXPECT_THROW(layout.coordinates(8), ConfigError);
  EXPECT_THROW(layout.coordinates(-1), ConfigError);
  EXPECT_THROW(layout.rank_at({0}), ConfigError);
  EXPECT_THROW(layout.rank_at({4, 0}), ConfigError);
  EXPECT_THROW(layout.line_at(0, 2), ConfigError);
  EXPECT_THROW(layout.slice_at({0}, 2), ConfigError);
  EXPECT_THROW(layout.slice({0}, 0).index_of(1), ConfigError);
}

}  // namespace
}  // namespace tessera
