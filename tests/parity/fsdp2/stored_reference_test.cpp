// Against the losses of PyTorch's FSDP2 on two ranks, stored in reference/ (see reference.py): no Python is needed.
#include <tessera/checkpoint/safetensors.h>
#include <tessera/comm/world.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parity/fsdp2/replay.h"

namespace tessera::testing {
namespace {

TEST(Fsdp2Reference, GivesTheLossesOfPyTorchsFsdp2) {
  const std::filesystem::path folder = TESSERA_REFERENCE_FOLDER;
  const at::Tensor expected = load_safetensors(folder / "losses.safetensors").at("losses");
  ASSERT_EQ(expected.size(0), 50);
  ASSERT_EQ(expected.size(1), 2);
  at::Tensor found;
  run_threads(2, [&](const World& world) {
    const at::Tensor losses = replay_sharded_gpt2(TESSERA_MODEL_FOLDER, expected.size(0), world.comm());
    if (world.rank() == 0) found = losses;
  });
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_LT((found - expected).abs().max().item<double>(), 1e-4);
  // The steps did something, and the ranks saw different data.
  EXPECT_GT((found[0] - found[-1]).abs().min().item<double>(), 0.1);
  EXPECT_GT((found.select(1, 0) - found.select(1, 1)).abs().max().item<double>(), 0.01);
}

}  // namespace
}  // namespace tessera::testing
