#include <tessera/core/error.h>
#include <tessera/optim/autocast.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/error_message.h"

namespace tessera {
namespace {

at::ScalarType product_type() { return at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); }

TEST(Autocast, LowersProductsWhileItLives) {
  {
    const Autocast autocast(at::kBFloat16);
    EXPECT_EQ(product_type(), at::kBFloat16);
  }
  EXPECT_EQ(product_type(), at::kFloat);
}

TEST(Autocast, NestsAndRestoresWhatWasBefore) {
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  {
    const Autocast outer(at::kBFloat16);
    {
      const Autocast inner(at::kHalf);
      EXPECT_EQ(product_type(), at::kHalf);
      const Autocast innermost(at::kFloat);
      EXPECT_EQ(product_type(), at::kFloat);
    }
    EXPECT_EQ(product_type(), at::kBFloat16);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), dtype);
}

TEST(Autocast, EndsWithAnException) {
  EXPECT_THROW(
      {
        const Autocast autocast(at::kBFloat16);
        at::matmul(at::ones({2, 3}), at::ones({2, 3}));
      },
      c10::Error);
  EXPECT_EQ(product_type(), at::kFloat);
}

/// The product of a weight with a one, through the cast that autocast may have kept.
double seen(const at::Tensor& weight) { return at::matmul(at::ones({1, 1}), weight).item<double>(); }

TEST(Autocast, KeepsCastsOfWeightsUntilTheOutermostEnds) {
  const at::Tensor weight = at::ones({1, 1}).set_requires_grad(true);
  {
    const Autocast outer(at::kBFloat16);
    {
      const Autocast inner(at::kBFloat16);
      EXPECT_EQ(seen(weight), 1);
    }
    weight.data().fill_(2);
    EXPECT_EQ(seen(weight), 1);
  }
  const Autocast next(at::kBFloat16);
  EXPECT_EQ(seen(weight), 2);
}

TEST(Autocast, GivesGradientsInTheWeightsOwnPrecision) {
  const at::Tensor weight = at::full({2, 2}, 0.5).set_requires_grad(true);
  at::Tensor loss;
  {
    const Autocast autocast(at::kBFloat16);
    loss = at::matmul(at::ones({3, 2}), weight).sum();
  }
  loss.backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(weight.grad(), at::full({2, 2}, 3.0)));
}

TEST(Autocast, GivesGradientsAlsoAfterAForwardWithoutThem) {
  const at::Tensor weight = at::full({2, 2}, 0.5).set_requires_grad(true);
  at::Tensor loss;
  {
    const Autocast autocast(at::kBFloat16);
    {
      const at::NoGradGuard evaluate;
      at::matmul(at::ones({3, 2}), weight);
    }
    loss = at::matmul(at::ones({3, 2}), weight).sum();
  }
  loss.backward();
  EXPECT_TRUE(weight.grad().defined());
}

TEST(Autocast, ActsOnItsThreadOnly) {
  const Autocast autocast(at::kBFloat16);
  at::ScalarType elsewhere = at::kBFloat16;
  std::thread([&elsewhere] { elsewhere = product_type(); }).join();
  EXPECT_EQ(elsewhere, at::kFloat);
}

TEST(Autocast, RefusesWhatItCannotDo) {
  testing::expect_parts(testing::message_of<ConfigError>([] { const Autocast refused(at::kDouble); }),
                        {"expected kBFloat16, kHalf, or kFloat to switch it off, found Double"});
  testing::expect_parts(testing::message_of<ConfigError>([] { const Autocast refused(at::kBFloat16, at::kMeta); }),
                        {"LibTorch has no autocast for the device meta"});
  EXPECT_EQ(product_type(), at::kFloat);
}

}  // namespace
}  // namespace tessera
