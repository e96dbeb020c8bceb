#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "support/error_message.h"

namespace tessera {
namespace {

constexpr int kContributions = 8;
constexpr std::int64_t kCount = 3001;

/// Values whose exponents differ so much that the order of a sum shows in most elements.
std::vector<at::Tensor> wild_contributions(at::ScalarType dtype) {
  at::manual_seed(17);
  const double spread = dtype == at::kHalf ? 4 : 20;
  std::vector<at::Tensor> contributions;
  for (int i = 0; i < kContributions; ++i) {
    const at::Tensor exponents = (at::rand({kCount}, at::kDouble) * 2 - 1) * spread;
    contributions.push_back((at::randn({kCount}, at::kDouble) * at::pow(2.0, exponents)).to(dtype));
  }
  return contributions;
}

/// The sum as every rank of a world of `num_ranks` has it; equal on all or the test fails.
at::Tensor tree_sum(const std::vector<at::Tensor>& contributions, int num_ranks) {
  std::mutex mutex;
  at::Tensor sum;
  run_threads(num_ranks, [&](const World& world) {
    const std::size_t share = contributions.size() / static_cast<std::size_t>(num_ranks);
    const auto begin = contributions.begin() + static_cast<std::ptrdiff_t>(share) * world.rank();
    const auto mine = std::vector<at::Tensor>(begin, begin + static_cast<std::ptrdiff_t>(share));
    const at::Tensor result = world.comm().all_reduce_contributions(mine);
    const std::lock_guard lock(mutex);
    if (!sum.defined()) sum = result;
    EXPECT_TRUE(at::equal(sum, result)) << "rank " << world.rank() << " of " << num_ranks;
  });
  return sum;
}

at::Tensor sum_in_order(const std::vector<at::Tensor>& contributions) {
  at::Tensor sum = contributions.front().clone();
  for (std::size_t i = 1; i < contributions.size(); ++i) sum += contributions[i];
  return sum;
}

TEST(TreeBits, AreTheSameOnOneTwoFourAndEightRanks) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto contributions = wild_contributions(dtype);
    const at::Tensor alone = tree_sum(contributions, 1);
    for (const int num_ranks : {2, 4, 8}) {
      EXPECT_TRUE(at::equal(tree_sum(contributions, num_ranks), alone))
          << c10::toString(dtype) << " on " << num_ranks << " ranks";
    }
    // Were the data tame, any order would give these bits and the test would say nothing.
    EXPECT_FALSE(at::equal(sum_in_order(contributions), alone)) << c10::toString(dtype);
    EXPECT_TRUE(at::allclose(sum_in_order(contributions).to(at::kDouble), alone.to(at::kDouble), 0.1,
                             dtype == at::kHalf || dtype == at::kBFloat16 ? 1e5 : 1.0));
  }
}

TEST(TreeBits, ContributionsKeepTheirValues) {
  const auto contributions = wild_contributions(at::kFloat);
  std::vector<at::Tensor> before;
  for (const auto& contribution : contributions) before.push_back(contribution.clone());
  tree_sum(contributions, 2);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(contributions[i], before[i]));
}

TEST(TreeBits, AreRefusedForWhatIsNotAPowerOfTwo) {
  const auto attempt = [](int num_ranks, std::size_t num_contributions) {
    return testing::message_of<ConfigError>([&] {
      run_threads(num_ranks, [&](const World& world) {
        world.comm().all_reduce_contributions(std::vector<at::Tensor>(num_contributions, at::ones({2})));
      });
    });
  };
  testing::expect_parts(attempt(3, 2), {"power of two", "2 on 3"});
  testing::expect_parts(attempt(2, 3), {"power of two", "3 on 2"});
  testing::expect_parts(attempt(2, 0), {"power of two", "0 on 2"});
}

TEST(TreeBits, AreRefusedForIntegersAndMixedShapes) {
  run_threads(1, [](const World& world) {
    EXPECT_THROW(world.comm().all_reduce_contributions({at::ones({2}, at::kLong)}), ConfigError);
    EXPECT_THROW(world.comm().all_reduce_contributions({at::ones({2}), at::ones({3})}), ConfigError);
    EXPECT_THROW(world.comm().all_reduce_contributions({at::ones({2}), at::ones({2}, at::kDouble)}), ConfigError);
  });
}

}  // namespace
}  // namespace tessera
