// Weights that transformers wrote become a step, are trained on in shards and go back: no Python is needed, since the
// model and its logits are the stored ones of the test of GPT-2.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/interchange.h>
#include <tessera/checkpoint/safetensors.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "gpt2/hugging_face.h"
#include "parity/interchange/sharded_gpt2.h"
#include "support/error_message.h"
#include "support/require.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

const std::filesystem::path kModel = TESSERA_MODEL_FOLDER;

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

class Interchange : public ::testing::Test {
 protected:
  Interchange() { import_weights(SafetensorsFolderBytes(kModel), imported_, 0, {.prefixes = {{"transformer.", ""}}}); }

  TemporaryFolder folder_;
  std::filesystem::path imported_ = folder_.path() / "imported";
  at::Tensor tokens_ = SafetensorsFile(kModel / "tokens.safetensors").read("tokens");
};

TEST_F(Interchange, ImportedWeightsGiveTheLogitsOfTransformersOnAnyNumberOfRanks) {
  const at::Tensor expected = SafetensorsFile(kModel / "python.safetensors").read("logits");
  for (const int num_ranks : {1, 2, 4}) {
    run_threads(num_ranks, [&](const World& world) {
      ShardedGpt2 model(read_config(kModel), world);
      require(largest_difference(model.logits(tokens_), expected) > 0.1, "fresh weights are others");
      CheckpointFolder checkpoints(imported_, world);
      checkpoints.load_newest([&](const SavedStep& step) {
        const RestoreReport report = model.state().restore(step, RestoreOptions().weights_only(true));
        require(report.missing.empty() && report.unexpected.empty(), "nothing is left out of the weights");
      });
      require(largest_difference(model.logits(tokens_), expected) < 1e-5, "the logits of transformers");
    });
  }
}

TEST_F(Interchange, AStepWithWeightsAloneIsNoCompleteState) {
  run_threads(2, [&](const World& world) {
    ShardedGpt2 model(read_config(kModel), world);
    const SavedStep step(imported_ / "step-00000000");
    expect_parts(
        message_of<ConfigError>([&] { model.state().restore(step); }),
        {"nothing was changed", "It lacks", "optimizer/wte.weight", "holds weights alone", "weights_only(true)"});
  });
}

TEST_F(Interchange, ExportedWeightsAreThoseThatWereTrained) {
  at::Tensor expected;
  run_threads(4, [&](const World& world) {
    ShardedGpt2 model(read_config(kModel), world);
    // Two samples a batch are one for each of two ranks, and four ranks need four.
    model.train(at::cat({tokens_, tokens_}, 1), 2);
    CheckpointFolder checkpoints(folder_.path() / "saved", world);
    require(checkpoints.save(2, model.state().capture()).saved, "saved");
    const at::Tensor logits = model.logits(tokens_);
    if (world.rank() == 0) expected = logits;
  });
  const auto out = folder_.path() / "exported";
  export_weights(SavedStep(folder_.path() / "saved" / "step-00000002"), out, {.prefixes = {{"", "transformer."}}});
  std::filesystem::copy_file(kModel / "config.json", out / "config.json");
  models::Gpt2 model = models::load_gpt2(out);
  const at::NoGradGuard no_grad;
  EXPECT_LT(largest_difference(model(tokens_[0].narrow(1, 0, tokens_.size(2) - 1)), expected), 1e-5);
}

}  // namespace
}  // namespace tessera::testing
