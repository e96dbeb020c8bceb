// Against what `transformers` made of a small GPT-2, stored in reference/ (see reference.py): no Python is needed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parity/gpt2/replay.h"

namespace tessera::testing {
namespace {

const std::filesystem::path kReference = TESSERA_REFERENCE_FOLDER;

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(Gpt2Reference, GivesTheLogitsAndLossesOfTransformers) {
  const TensorsByName expected = load_safetensors(kReference / "python.safetensors");
  // Whose layers several ranks share; three do not divide 4 heads.
  for (const int num_ranks : {1, 2, 3}) {
    run_threads(num_ranks, [&](const World& world) {
      const Replay replay = replay_gpt2(kReference, world);
      ASSERT_EQ(replay.logits.sizes(), expected.at("logits").sizes());
      EXPECT_LT(largest_difference(replay.logits, expected.at("logits")), 1e-5) << num_ranks << " ranks";
      ASSERT_EQ(replay.losses.sizes(), expected.at("losses").sizes());
      EXPECT_LT(largest_difference(replay.losses, expected.at("losses")), 1e-4) << num_ranks << " ranks";
      // The steps did something.
      EXPECT_GT(largest_difference(replay.losses[0], replay.losses[-1]), 0.1);
    });
  }
}

}  // namespace
}  // namespace tessera::testing
