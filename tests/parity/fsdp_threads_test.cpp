#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <tuple>

#include "parity/sharded.h"

namespace tessera::testing {
namespace {

class FsdpParity : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  /// Every variant on ranks that are threads.
  static void check(ParityCase parity) {
    std::tie(parity.model, parity.num_ranks) = GetParam();
    const State expected = train_alone(parity);
    for (const auto& variant : sharded_variants()) {
      try {
        run_threads(parity.num_ranks, [&](const World& world) {
          State found = train_sharded(parity, variant, world.comm());
          require_equal(found, expected, parity, variant);
        });
      } catch (const std::exception& error) {
        ADD_FAILURE() << variant << ": " << error.what();
      }
    }
  }
};

TEST_P(FsdpParity, SgdInDouble) { check({.model = "", .optimizer = "sgd", .dtype = torch::kDouble}); }
TEST_P(FsdpParity, SgdInFloat) { check({.model = "", .optimizer = "sgd", .dtype = torch::kFloat}); }
TEST_P(FsdpParity, AdamWInDouble) { check({.model = "", .optimizer = "adamw", .dtype = torch::kDouble}); }
TEST_P(FsdpParity, SgdWithAccumulation) {
  check({.model = "", .optimizer = "sgd", .dtype = torch::kDouble, .micro_batches = 2});
}

INSTANTIATE_TEST_SUITE_P(Models, FsdpParity,
                         ::testing::Combine(::testing::Values("gpt", "recomputed gpt", "conv", "lstm", "transformer",
                                                              "attention", "sequential", "gpt2", "function"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& one) {
                           std::string name = std::get<0>(one.param);
                           std::erase(name, ' ');
                           return name + "On" + std::to_string(std::get<1>(one.param));
                         });

}  // namespace
}  // namespace tessera::testing
