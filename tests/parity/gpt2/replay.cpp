#include "parity/gpt2/replay.h"

#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <string>
#include <vector>

#include "gpt2/hugging_face.h"
#include "support/whole_copy.h"

namespace tessera::testing {
namespace {

std::optional<ParallelModel> cut(const models::Gpt2& model, const World& world) {
  if (world.size() == 1) return std::nullopt;
  const std::int64_t heads = model->config().num_heads();
  return tensor_parallel(model, world,
                         {{"h.*.attn.c_attn", split_heads(heads).packed(3).transposed()},
                          {"h.*.attn.c_proj", split_rows().heads(heads).transposed()},
                          {"h.*.mlp.c_fc", split_columns().transposed()},
                          {"h.*.mlp.c_proj", split_rows().transposed()},
                          {"wte", split_vocabulary()}});
}

TensorsByName gradients_of(const models::Gpt2& model) {
  TensorsByName gradients;
  for (const auto& item : model->named_parameters())
    gradients["transformer." + item.key()] = whole_copy(item.value().grad());
  return gradients;
}

}  // namespace

Replay replay_gpt2(const std::filesystem::path& folder, const World& world) {
  const SafetensorsFile file(folder / "tokens.safetensors");
  const auto setting = [&file](const char* key) { return std::stod(file.layout().metadata().at(key)); };
  const at::Tensor tokens = file.read("tokens");  // [steps, batch, length + 1]
  const std::int64_t length = tokens.size(2) - 1;

  Replay replay{models::load_gpt2(folder), {}, {}, {}, {}};
  replay.parallel = cut(replay.model, world);
  {
    const at::NoGradGuard no_grad;
    replay.logits = whole_copy(replay.model(tokens[0].narrow(1, 0, length)));
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
    if (step == 0) replay.gradients = gradients_of(replay.model);
    optimizer.step();
  }
  replay.losses = at::tensor(losses, at::kDouble);
  return replay;
}

}  // namespace tessera::testing
