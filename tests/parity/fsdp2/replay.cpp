#include "parity/fsdp2/replay.h"

#include <tessera/checkpoint/safetensors.h>
#include <tessera/fsdp/fully_shard.h>

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <string>
#include <vector>

#include "gpt2/hugging_face.h"

namespace tessera::testing {

at::Tensor replay_sharded_gpt2(const std::filesystem::path& folder, std::int64_t num_steps, const Communicator& comm) {
  const SafetensorsFile file(folder / "tokens.safetensors");
  const auto setting = [&file](const char* key) { return std::stod(file.layout().metadata().at(key)); };
  const at::Tensor tokens = file.read("tokens");  // [batches, batch, length + 1]
  const std::int64_t length = tokens.size(2) - 1;
  const std::int64_t share = tokens.size(1) / comm.size();

  models::Gpt2 model = models::load_gpt2(folder);
  const ShardedModel sharded = fully_shard(model, comm, FsdpOptions().auto_wrap(wrap_by_type<models::Gpt2BlockImpl>()));
  torch::optim::AdamW optimizer(
      sharded.parameters(), torch::optim::AdamWOptions(setting("learning_rate")).weight_decay(setting("weight_decay")));
  std::vector<double> losses;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    const at::Tensor batch = tokens[step % tokens.size(0)].narrow(0, comm.rank() * share, share);
    const at::Tensor loss = model->loss(batch.narrow(1, 0, length), batch.narrow(1, 1, length));
    losses.push_back(loss.item<double>());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  return comm.all_gather(at::tensor(losses, at::kDouble).unsqueeze(1), 1);
}

}  // namespace tessera::testing
