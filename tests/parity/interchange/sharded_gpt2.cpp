#include "parity/interchange/sharded_gpt2.h"

#include <ATen/ATen.h>
#include <torch/utils.h>

#include "gpt2/hugging_face.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

models::Gpt2 fresh_gpt2(const models::Gpt2Config& config) {
  torch::manual_seed(1);
  return models::Gpt2(config);
}

}  // namespace

ShardedGpt2::ShardedGpt2(const models::Gpt2Config& config, const Ranks& ranks)
    : comm_(ranks.comm()),
      model_(fresh_gpt2(config)),
      sharded_(fully_shard(model_, comm_, FsdpOptions().auto_wrap(wrap_by_type<models::Gpt2BlockImpl>()))),
      optimizer_(sharded_.parameters(), torch::optim::AdamWOptions(1e-3)),
      state_(ranks) {
  state_.model(sharded_).optimizer(optimizer_);
}

void ShardedGpt2::train(const at::Tensor& tokens, std::int64_t num_steps) {
  const std::int64_t share = tokens.size(1) / comm_.size();
  const std::int64_t length = tokens.size(2) - 1;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    const at::Tensor batch = tokens[step % tokens.size(0)].narrow(0, comm_.rank() * share, share);
    optimizer_.zero_grad();
    model_->loss(batch.narrow(1, 0, length), batch.narrow(1, 1, length)).backward();
    optimizer_.step();
  }
}

at::Tensor ShardedGpt2::logits(const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  return model_(tokens[0].narrow(1, 0, tokens.size(2) - 1));
}

models::Gpt2Config read_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  return models::parse_hugging_face_config(text_of_file(path), path.string());
}

}  // namespace tessera::testing
