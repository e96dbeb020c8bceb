#include "parity/gpt2/replay.h"

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <string>
#include <vector>

#include "gpt2/hugging_face.h"

namespace tessera::testing {

Replay replay_gpt2(const std::filesystem::path& folder) {
  const SafetensorsFile file(folder / "tokens.safetensors");
  const auto setting = [&file](const char* key) { return std::stod(file.layout().metadata().at(key)); };
  const at::Tensor tokens = file.read("tokens");  // [steps, batch, length + 1]
  const std::int64_t length = tokens.size(2) - 1;

  Replay replay{models::load_gpt2(folder), {}, {}};
  {
    const at::NoGradGuard no_grad;
    replay.logits = replay.model(tokens[0].narrow(1, 0, length));
  }
  torch::optim::AdamW optimizer(
      replay.model->parameters(),
      torch::optim::AdamWOptions(setting("learning_rate")).weight_decay(setting("weight_decay")));
  std::vector<double> losses;
  for (std::int64_t step = 0; step < tokens.size(0); ++step) {
    const at::Tensor batch = tokens[step];
    const at::Tensor loss = replay.model->loss(batch.narrow(1, 0, length), batch.narrow(1, 1, length));
    losses.push_back(loss.item<double>());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  replay.losses = at::tensor(losses, at::kDouble);
  return replay;
}

}  // namespace tessera::testing
