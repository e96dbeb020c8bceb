// One rank of the interchange with transformers (see run): trains a GPT-2 in shards and saves it, or loads weights.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/safetensors.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "parity/interchange/sharded_gpt2.h"

namespace {

using namespace tessera;

constexpr std::int64_t kSteps = 5;

/// `action` is "train" or "load". FOLDER holds config.json and tokens.safetensors; rank 0 writes the logits to RESULT.
void run(const std::string& action, const std::filesystem::path& folder, const std::string& checkpoints_path,
         const std::string& result) {
  const World world = init(WorldOptions().backend("gloo"));
  const at::Tensor tokens = SafetensorsFile(folder / "tokens.safetensors").read("tokens");
  testing::ShardedGpt2 model(testing::read_config(folder), world);
  CheckpointFolder checkpoints(checkpoints_path, world);
  if (action == "train") {
    model.train(tokens, kSteps);
    const SaveReport report = checkpoints.save(kSteps, model.state().capture());
    if (!report.saved) throw StorageError(report.error);
  } else {
    const auto restore = [&](const SavedStep& step) {
      model.state().restore(step, RestoreOptions().weights_only(true));
    };
    if (!checkpoints.load_newest(restore)) throw ConfigError(checkpoints_path + " holds no step");
  }
  const at::Tensor logits = model.logits(tokens);
  if (world.rank() == 0) save_safetensors(result, {{"logits", logits}});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s train|load FOLDER CHECKPOINTS RESULT (see tests/parity/interchange/run)\n",
                 argv[0]);
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3], argv[4]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
