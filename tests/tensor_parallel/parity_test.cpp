// Models of other tests, cut by a plan: they train as in one process. Those that draw random numbers: process/main.cpp.
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "support/require.h"
#include "tensor_parallel/training.h"

namespace tessera::testing {
namespace {

void expect_parity(const TensorCase& training) {
  const Values alone = train_alone(training);
  const double tolerance = tolerance_of(training);
  for (const int num_ranks : {1, 2, 3, 4}) {
    run_threads(num_ranks, [&](const World& world) {
      const auto [difference, name] = largest_difference(train_cut(training, world), alone);
      require(difference <= tolerance, training.model + " on " + std::to_string(num_ranks) + " ranks: " + name +
                                           " differs by " + std::to_string(difference * 1e6) + "e-6");
    });
  }
}

class TensorParity : public ::testing::TestWithParam<std::string> {};

TEST_P(TensorParity, TrainsWithAdamWAsInOneProcess) { expect_parity({.model = GetParam()}); }

TEST_P(TensorParity, TrainsWithSgdInSinglePrecision) {
  expect_parity({.model = GetParam(), .uses_adamw = false, .dtype = torch::kFloat});
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParity,
                         ::testing::Values("gpt", "recomputed gpt", "gpt2", "transformer", "bert", "vit", "resnet",
                                           "unet", "conv", "lstm", "sequential", "function"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera::testing
