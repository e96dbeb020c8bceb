// A run that stops and goes on, against one that does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/require_tensors.h"
#include "train/state/memory_step.h"
#include "train/state/trainee.h"

namespace tessera::testing {
namespace {

constexpr int kHalf = 3;

Weights straight(const World& world, const std::string& variant, const std::string& optimizer, bool feels_drift) {
  TraineeRun run(world, variant, optimizer, feels_drift);
  run.train(2 * kHalf);
  return run.weights();
}

/// The second half, by objects that know nothing of the first. Collective.
Weights restore_and_train(const World& world, const std::string& variant, const std::string& optimizer,
                          bool feels_drift, const StateSource& source) {
  TraineeRun run(world, variant, optimizer, feels_drift);
  run.state().restore(source);
  require_equal(run.step(), kHalf, "the program's own value is back");
  run.train(kHalf);
  return run.weights();
}

void require_equal_weights(const Weights& found, const Weights& expected, const std::string& what) {
  require_equal(found.size(), expected.size(), what + ": as many parameters");
  for (const auto& [name, value] : expected) require_equal(found.at(name), value, what + ": " + name);
}

/// One name for each way to share the model, with a number of ranks.
class SameLayout : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(SameLayout, GoesOnWithTheSameBits) {
  const auto& [variant, num_ranks] = GetParam();
  for (const std::string& optimizer : trainee_optimizers()) {
    const bool feels_drift = !variant.ends_with("reproducible");
    std::vector<Weights> expected(static_cast<std::size_t>(num_ranks));
    const auto of = [&](const World& world) -> Weights& { return expected[static_cast<std::size_t>(world.rank())]; };
    run_threads(num_ranks, [&](const World& world) { of(world) = straight(world, variant, optimizer, feels_drift); });
    MemoryStep step(kHalf);
    run_threads(num_ranks,
                [&](const World& world) { train_and_save(world, variant, optimizer, kHalf, step, feels_drift); });
    const StateSource source = step.source();
    run_threads(num_ranks, [&](const World& world) {
      require_equal_weights(restore_and_train(world, variant, optimizer, feels_drift, source), of(world), optimizer);
    });
  }
}

std::vector<std::tuple<std::string, int>> variants_and_ranks() {
  std::vector<std::tuple<std::string, int>> cases;
  for (const std::string& variant : trainee_variants()) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      if (fits(variant, num_ranks) && (num_ranks > 1 || variant == "alone")) cases.emplace_back(variant, num_ranks);
    }
  }
  return cases;
}

std::string text_of(const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  std::string text = std::get<0>(info.param) + "With" + std::to_string(std::get<1>(info.param));
  std::replace_if(text.begin(), text.end(), [](char c) { return c == ' '; }, '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Variants, SameLayout, ::testing::ValuesIn(variants_and_ranks()), text_of);

struct Place {
  std::string variant;
  int num_ranks;
};
struct Move {
  Place from;
  Place to;
};
std::ostream& operator<<(std::ostream& out, const Move& move) {
  return out << move.from.variant << " on " << move.from.num_ranks << " to " << move.to.variant << " on "
             << move.to.num_ranks;
}

class OtherLayout : public ::testing::TestWithParam<Move> {};

TEST_P(OtherLayout, GoesOnAsOneProcessWould) {
  const auto& [from, to] = GetParam();
  for (const std::string& optimizer : trainee_optimizers()) {
    Weights expected;
    run_threads(1, [&](const World& world) { expected = straight(world, "alone", optimizer, false); });
    MemoryStep step(kHalf);
    run_threads(from.num_ranks,
                [&](const World& world) { train_and_save(world, from.variant, optimizer, kHalf, step, false); });
    const StateSource source = step.source();
    run_threads(to.num_ranks, [&](const World& world) {
      const Weights found = restore_and_train(world, to.variant, optimizer, false, source);
      for (const auto& [name, value] : expected) {
        const double difference = (found.at(name) - value).abs().max().item<double>();
        require(difference <= 1e-10 * value.abs().max().item<double>(),
                optimizer + ": " + name + " differs by " + std::to_string(difference));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Moves, OtherLayout,
    ::testing::Values(Move{{"alone", 1}, {"full", 3}}, Move{{"full", 2}, {"full", 3}}, Move{{"full", 3}, {"alone", 1}},
                      Move{{"full one unit", 3}, {"full orig", 2}}, Move{{"zero1 orig", 2}, {"full one unit", 4}},
                      Move{{"ddp", 2}, {"ddp", 3}}, Move{{"ddp", 3}, {"zero1", 2}}, Move{{"grad_op", 4}, {"ddp", 2}},
                      Move{{"hybrid", 4}, {"full small whole", 3}}, Move{{"full small whole", 3}, {"hybrid", 4}},
                      Move{{"no_shard", 2}, {"full own copy", 8}}, Move{{"full", 8}, {"no_shard", 3}},
                      Move{{"ddp reproducible", 4}, {"full reproducible", 2}},
                      Move{{"full reproducible", 2}, {"full", 3}}));

/// In reproducible mode another number of ranks changes no bit.
TEST(ReproducibleResume, GoesOnWithTheSameBitsOnAnyNumberOfRanks) {
  Weights expected;
  run_threads(1, [&](const World& world) { expected = straight(world, "ddp reproducible", "fused adamw", false); });
  for (const auto& [from, to] : std::vector<Move>{{{"ddp reproducible", 2}, {"ddp reproducible", 4}},
                                                  {{"full reproducible", 4}, {"ddp reproducible", 1}},
                                                  {{"ddp reproducible", 8}, {"full reproducible", 2}},
                                                  {{"full reproducible", 1}, {"full reproducible", 8}}}) {
    MemoryStep step(kHalf);
    run_threads(from.num_ranks,
                [&](const World& world) { train_and_save(world, from.variant, "fused adamw", kHalf, step, false); });
    const StateSource source = step.source();
    run_threads(to.num_ranks, [&](const World& world) {
      require_equal_weights(restore_and_train(world, to.variant, "fused adamw", false, source), expected, to.variant);
    });
  }
}

}  // namespace
}  // namespace tessera::testing
