// What the second run finds as the first one had it: random numbers and autocast.
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/batchnorm.h>

#include <optional>
#include <thread>
#include <utility>

#include "recompute/blocks.h"

namespace tessera {
namespace {

using testing::call;
using testing::expect_same_gradients;
using testing::leaf;
using testing::waves;

TEST(RandomNumbers, AreTheSameInTheSecondRun) {
  const at::Tensor a = leaf({50});
  // The normal distribution keeps one number for the next call; that is part of the state too.
  expect_same_gradients({a}, [&](bool recomputed) {
    const auto noisy = [](const at::Tensor& x) {
      return at::dropout((x + at::randn({}, at::kDouble)).sin(), 0.5, /*train=*/true) * at::rand({50}, at::kDouble);
    };
    at::Tensor x = a;
    for (int i = 0; i < 3; ++i) x = call(recomputed, noisy, x);
    return x.sum();
  });
}

TEST(RandomNumbers, GoOnAfterBackwardWhereForwardLeftThem) {
  torch::manual_seed(3);
  const at::Tensor a = leaf({10});
  const at::Tensor y = recompute([](const at::Tensor& x) { return at::dropout(x.exp(), 0.5, true); }, a);
  const at::Tensor between = at::rand({3});
  y.sum().backward();
  const at::Tensor after = at::rand({3});

  torch::manual_seed(3);
  at::dropout(a.exp(), 0.5, true);
  EXPECT_TRUE(at::equal(at::rand({3}), between));
  EXPECT_TRUE(at::equal(at::rand({3}), after));
}

TEST(RandomNumbers, OfOtherThreadsDoNotConcernAFunctionThatDrawsNone) {
  const at::Tensor a = leaf({10});
  const at::Tensor y = recompute(
      [](const at::Tensor& x) {
        std::thread([] { at::rand({1}); }).join();  // as one that prepares data
        return x.exp().sin();
      },
      a);
  y.sum().backward();
  EXPECT_TRUE(at::allclose(a.grad(), a.exp().cos() * a.exp(), 0, 1e-12));
}

/// As a program does it.
struct Autocast {
  explicit Autocast(at::ScalarType dtype) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

class AutocastIsKept : public ::testing::TestWithParam<bool> {};

TEST_P(AutocastIsKept, AlsoWhenBackwardRunsOutsideOfIt) {
  const bool backward_inside = GetParam();
  const auto block = std::make_shared<testing::Block>(16, 0.0);
  const at::Tensor input = waves({2, 5, 16}).to(at::kFloat);
  std::vector<at::ScalarType> types;
  const auto gradients = [&](bool recomputed) {
    block->zero_grad();
    const auto forward = [&, block](const at::Tensor& x) {
      types.push_back(block->up(x).scalar_type());
      return block->forward(x);
    };
    std::optional<Autocast> autocast(std::in_place, at::kBFloat16);
    // The same weights twice: the second call finds their casts in autocast's cache.
    const at::Tensor x = call(recomputed, forward, input);
    const at::Tensor loss = call(recomputed, forward, x).to(at::kFloat).square().mean();
    if (!backward_inside) autocast.reset();
    loss.backward();
    std::vector<at::Tensor> found;
    for (const at::Tensor& parameter : block->parameters()) found.push_back(parameter.grad().clone());
    return found;
  };
  const auto expected = gradients(false);
  types.clear();
  const auto found = gradients(true);
  EXPECT_EQ(types, std::vector<at::ScalarType>(4, at::kBFloat16));
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << "parameter " << i;
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

INSTANTIATE_TEST_SUITE_P(Backward, AutocastIsKept, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "Inside" : "Outside"; });

TEST(AutocastStaysOff, WhenBackwardRunsInsideOfARegion) {
  const at::Tensor a = waves({4, 4}).to(at::kFloat).requires_grad_(true);
  std::vector<at::ScalarType> types;
  const at::Tensor y = recompute(
      [&](const at::Tensor& x) {
        const at::Tensor product = at::matmul(x, x);
        types.push_back(product.scalar_type());
        return product.exp().sin();
      },
      a);
  const Autocast autocast(at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(types, std::vector<at::ScalarType>(2, at::kFloat));
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(BatchNorm, HasThePlainGradientsThoughItsStatisticsMoveTwice) {
  torch::nn::BatchNorm1d norm(4);
  norm->to(at::kDouble);
  const at::Tensor a = leaf({6, 4});
  auto leaves = norm->parameters();
  leaves.push_back(a);
  expect_same_gradients(leaves, [&](bool recomputed) {
    return call(recomputed, [norm](const at::Tensor& x) mutable { return norm(x.exp()).sin(); }, a).sum();
  });
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 3) << "one plain forward, and two of a checkpoint";
}

}  // namespace
}  // namespace tessera
