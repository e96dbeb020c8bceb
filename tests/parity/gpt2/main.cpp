// Trains a GPT-2 from the files in a folder, in one process or on ranks that share its layers, and stores what came of
// it beside them for reference.py to compare.
#include <ATen/ATen.h>

#include <cstdio>
#include <exception>
#include <optional>

#include "generation/options.h"
#include "gpt2/generate.h"
#include "gpt2/hugging_face.h"
#include "parity/gpt2/replay.h"

namespace {

void run(const std::filesystem::path& folder) {
  using namespace tessera;
  const World world = init();
  testing::Replay replay = testing::replay_gpt2(folder, world);
  std::optional<Whole> whole;
  if (replay.parallel) whole.emplace(*replay.parallel);
  if (world.rank() != 0) return world.comm().barrier();
  models::save_gpt2(replay.model, folder / "tessera");

  const at::Tensor tokens = SafetensorsFile(folder / "tokens.safetensors").read("tokens");
  const at::Tensor start = tokens[0].narrow(1, 0, 4);
  const auto options = models::GenerateOptions().temperature(0).max_new_tokens(16);
  const at::NoGradGuard no_grad;
  const at::Tensor last = tokens[0].narrow(1, 0, tokens.size(2) - 1);
  save_safetensors(folder / "tessera_gradients.safetensors", replay.gradients);
  save_safetensors(folder / "tessera.safetensors", {{"logits", replay.logits},
                                                    {"losses", replay.losses},
                                                    {"trained_logits", replay.model(last)},
                                                    {"greedy", models::generate(replay.model, start, options)}});
  world.comm().barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER (see tests/parity/gpt2/run)\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
