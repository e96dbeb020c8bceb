#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <exception>

#include "parity/training.h"

namespace tessera::testing {
namespace {

class DdpParity : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  /// Every variant on ranks that are threads.
  static void check(ParityCase parity) {
    std::tie(parity.model, parity.num_ranks) = GetParam();
    const State expected = train_alone(parity);
    for (const auto& variant : parity_variants()) {
      if (variant == "reproducible" && parity.model == "conv") continue;  // refused: see reproducible_test.cpp
      try {
        run_threads(parity.num_ranks, [&](const World& world) {
          require_equal(train_distributed(parity, variant, world.comm()), expected, parity, variant);
        });
      } catch (const std::exception& error) {
        ADD_FAILURE() << variant << ": " << error.what();
      }
    }
  }
};

TEST_P(DdpParity, SgdInDouble) { check({.model = "", .optimizer = "sgd", .dtype = torch::kDouble}); }
TEST_P(DdpParity, SgdInFloat) { check({.model = "", .optimizer = "sgd", .dtype = torch::kFloat}); }
TEST_P(DdpParity, AdamWInDouble) { check({.model = "", .optimizer = "adamw", .dtype = torch::kDouble}); }
TEST_P(DdpParity, SgdWithAccumulation) {
  check({.model = "", .optimizer = "sgd", .dtype = torch::kDouble, .micro_batches = 2});
}

INSTANTIATE_TEST_SUITE_P(Models, DdpParity,
                         ::testing::Combine(::testing::Values("gpt", "conv", "lstm"), ::testing::Values(2, 4)),
                         [](const auto& one) {
                           return std::get<0>(one.param) + "On" + std::to_string(std::get<1>(one.param));
                         });

TEST(ParityCheck, SaysWhenWeightsDiffer) {
  const ParityCase parity{.model = "lstm", .optimizer = "sgd"};
  State other = train_alone(parity);
  other["head.bias"] += 1e-6;
  EXPECT_THROW(require_equal(other, train_alone(parity), parity, "changed"), std::runtime_error);
}

}  // namespace
}  // namespace tessera::testing
