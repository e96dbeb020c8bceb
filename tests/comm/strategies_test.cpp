// Every strategy must give what one process computes, wherever the nodes begin and whatever the group's order.
#include <tessera/comm/world.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

#include "conformance/reference.h"

namespace tessera {
namespace {

using testing::compare_equal;
using testing::compare_reduced;
using testing::Inputs;
using testing::make_inputs;

constexpr int kMaxRanks = 8;
constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
constexpr std::array kTypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte};

struct Setting {
  CommunicationStrategy strategy;
  int ranks_per_node;
};

const std::array kSettings = {
    Setting{CommunicationStrategy::kBackend, 0},      Setting{CommunicationStrategy::kRing, 0},
    Setting{CommunicationStrategy::kTree, 0},         Setting{CommunicationStrategy::kHierarchical, 1},
    Setting{CommunicationStrategy::kHierarchical, 2}, Setting{CommunicationStrategy::kHierarchical, 3},
    Setting{CommunicationStrategy::kAdaptive, 0},     Setting{CommunicationStrategy::kAdaptive, 2}};

/// Runs `check` with the world and with its ranks in another order, for every setting and size.
void for_every_group(const std::function<void(const Communicator&)>& check) {
  for (const Setting& setting : kSettings) {
    for (int num_ranks = 1; num_ranks <= kMaxRanks; ++num_ranks) {
      SCOPED_TRACE(std::string(to_string(setting.strategy)) + " on " + std::to_string(num_ranks) + " ranks, " +
                   std::to_string(setting.ranks_per_node) + " a node");
      run_threads(
          num_ranks,
          [&](const World& world) {
            std::vector<int> order;
            for (int i = 0; i < num_ranks; ++i) order.push_back((num_ranks + 1 - i) % num_ranks);
            check(world.comm());
            check(world.comm().split(order, "permuted"));
          },
          WorldOptions().strategy(std::string(to_string(setting.strategy))), setting.ranks_per_node);
    }
  }
}

std::size_t index_of(const Communicator& comm) { return static_cast<std::size_t>(comm.rank()); }

/// 0, 1, 2, 0, 1, ... rows: uneven, with empty ones.
Communicator::Sizes uneven_sizes(int size) {
  Communicator::Sizes sizes;
  for (int r = 0; r < size; ++r) sizes.push_back(r % 3);
  if (size == 1) sizes[0] = 2;
  return sizes;
}

bool makes_sense(at::ScalarType dtype, ReduceOp op) { return at::isFloatingType(dtype) || op != ReduceOp::kAvg; }

TEST(Strategies, AllReduceCombinesEveryTypeByEveryOperation) {
  for_every_group([](const Communicator& comm) {
    for (const auto dtype : kTypes) {
      for (const auto op : kOps) {
        if (!makes_sense(dtype, op)) continue;
        const Inputs inputs = make_inputs(dtype, 37, comm.size(), true, op);
        at::Tensor tensor = inputs.of_rank[index_of(comm)].clone();
        comm.all_reduce(tensor, op);
        EXPECT_EQ(compare_reduced(tensor, inputs), "")
            << comm.name() << " " << c10::toString(dtype) << " " << to_string(op);
      }
    }
  });
}

TEST(Strategies, AllReduceWorksOnNothingAndOnLessThanOneElementARank) {
  for_every_group([](const Communicator& comm) {
    for (const std::int64_t count : {0, 1, 3}) {
      const Inputs inputs = make_inputs(at::kFloat, count, comm.size(), true, ReduceOp::kSum);
      at::Tensor tensor = inputs.of_rank[index_of(comm)].clone();
      comm.all_reduce(tensor);
      EXPECT_EQ(compare_reduced(tensor, inputs), "") << comm.name() << " x" << count;
    }
  });
}

TEST(Strategies, AllGatherJoinsPiecesInRankOrder) {
  for_every_group([](const Communicator& comm) {
    const at::Tensor mine = at::full({2, 3}, comm.rank() + 0.5);
    const at::Tensor rows = comm.all_gather(mine);
    const at::Tensor columns = comm.all_gather(mine, -1);
    std::vector<at::Tensor> all;
    for (int r = 0; r < comm.size(); ++r) all.push_back(at::full({2, 3}, r + 0.5));
    EXPECT_EQ(compare_equal(rows, at::cat(all)), "") << comm.name();
    EXPECT_EQ(compare_equal(columns, at::cat(all, 1)), "") << comm.name();
  });
}

TEST(Strategies, AllGatherTakesUnevenAndEmptyPieces) {
  for_every_group([](const Communicator& comm) {
    const auto sizes = uneven_sizes(comm.size());
    const at::Tensor mine = at::full({sizes[index_of(comm)], 5}, comm.rank(), at::kInt);
    std::vector<at::Tensor> all;
    for (int r = 0; r < comm.size(); ++r) all.push_back(at::full({sizes[static_cast<std::size_t>(r)], 5}, r, at::kInt));
    EXPECT_EQ(compare_equal(comm.all_gather(mine, 0, sizes), at::cat(all)), "") << comm.name();
  });
}

TEST(Strategies, ReduceScatterGivesEveryRankItsPiece) {
  for_every_group([](const Communicator& comm) {
    for (const auto op : kOps) {
      const auto sizes = uneven_sizes(comm.size());
      const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
      const std::int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + comm.rank(), std::int64_t{0});
      const Inputs uneven = make_inputs(at::kDouble, total, comm.size(), true, op);
      const at::Tensor piece = comm.reduce_scatter(uneven.of_rank[index_of(comm)], op, 0, sizes);
      EXPECT_EQ(piece.numel(), sizes[index_of(comm)]);
      EXPECT_EQ(compare_reduced(piece, uneven, begin), "") << comm.name() << " uneven " << to_string(op);
      const Inputs even = make_inputs(at::kDouble, 4 * comm.size(), comm.size(), true, op);
      EXPECT_EQ(compare_reduced(comm.reduce_scatter(even.of_rank[index_of(comm)], op), even, 4 * comm.rank()), "")
          << comm.name() << " even " << to_string(op);
    }
  });
}

TEST(Strategies, BroadcastReachesAllFromEveryRoot) {
  for_every_group([](const Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      at::Tensor tensor = comm.rank() == root ? at::arange(11, at::kLong) + root : at::zeros({11}, at::kLong);
      comm.broadcast(tensor, root);
      EXPECT_EQ(compare_equal(tensor, at::arange(11, at::kLong) + root), "") << comm.name() << " root " << root;
    }
  });
}

TEST(Strategies, ReduceChangesTheRootAlone) {
  for_every_group([](const Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      for (const auto op : kOps) {
        const Inputs inputs = make_inputs(at::kFloat, 9, comm.size(), true, op);
        const at::Tensor& mine = inputs.of_rank[index_of(comm)];
        at::Tensor tensor = mine.clone();
        comm.reduce(tensor, root, op);
        EXPECT_EQ(comm.rank() == root ? compare_reduced(tensor, inputs) : compare_equal(tensor, mine), "")
            << comm.name() << " " << to_string(op) << " to " << root;
      }
    }
  });
}

TEST(Strategies, NobodyLeavesABarrierBeforeAllHaveCome) {
  for (const Setting& setting : kSettings) {
    for (int num_ranks = 1; num_ranks <= kMaxRanks; ++num_ranks) {
      std::atomic<int> arrived = 0;
      run_threads(
          num_ranks,
          [&](const World& world) {
            for (int round = 1; round <= 20; ++round) {
              ++arrived;
              world.comm().barrier();
              EXPECT_GE(arrived.load(), round * num_ranks) << to_string(setting.strategy);
              world.comm().barrier();
            }
          },
          WorldOptions().strategy(std::string(to_string(setting.strategy))), setting.ranks_per_node);
    }
  }
}

TEST(Strategies, MayBeMixedInOneGroup) {
  run_threads(
      6,
      [](const World& world) {
        std::vector<Work> pending;
        std::vector<at::Tensor> tensors;
        for (const Setting& setting : kSettings) {
          tensors.push_back(at::ones({100}));
          pending.push_back(world.comm().with_strategy(setting.strategy).all_reduce_async(tensors.back()));
        }
        for (auto& work : pending) work.wait();
        for (const auto& tensor : tensors) EXPECT_TRUE(at::equal(tensor, at::full({100}, 6.0F)));
      },
      WorldOptions(), 2);
}

TEST(Strategies, LargeTensorsGoInSegments) {
  // Several segments of a ring and of a tree, several windows of staging, and a remainder.
  run_threads(3, [](const World& world) {
    for (const auto strategy : {CommunicationStrategy::kBackend, CommunicationStrategy::kRing,
                                CommunicationStrategy::kTree, CommunicationStrategy::kHierarchical}) {
      const auto comm = world.comm().with_strategy(strategy);
      const std::int64_t count = (std::int64_t{5} << 18) + 13;
      at::Tensor sum = at::full({count}, world.rank() + 1.0F);
      comm.all_reduce(sum);
      EXPECT_TRUE(at::equal(sum, at::full({count}, 6.0F))) << to_string(strategy);
      at::Tensor value = at::full({count}, world.rank() + 1.0F);
      comm.broadcast(value, 2);
      EXPECT_TRUE(at::equal(value, at::full({count}, 3.0F))) << to_string(strategy);
      at::Tensor most = at::full({count}, world.rank() + 1.0F);
      comm.reduce(most, 1, ReduceOp::kMax);
      EXPECT_TRUE(at::equal(most, at::full({count}, world.rank() == 1 ? 3.0F : world.rank() + 1.0F)));
    }
  });
}

}  // namespace
}  // namespace tessera
