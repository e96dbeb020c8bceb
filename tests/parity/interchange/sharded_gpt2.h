#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/mesh/ranks.h>
#include <tessera/train/training_state.h>

#include <torch/optim/adamw.h>

#include <cstdint>
#include <filesystem>

#include "gpt2/gpt2.h"

namespace tessera::testing {

/// A GPT-2 in shards, with what a run of it keeps.
class ShardedGpt2 {
 public:
  /// Fresh weights, the same on every rank. Collective.
  ShardedGpt2(const models::Gpt2Config& config, const Ranks& ranks);

  TrainingState& state() { return state_; }
  /// Trains on one batch of `tokens`, [batches, batch, length + 1], a step; each rank takes its share. Collective.
  void train(const at::Tensor& tokens, std::int64_t num_steps);
  /// Of the inputs of the first batch, whole, on every rank. Collective.
  at::Tensor logits(const at::Tensor& tokens);

 private:
  Communicator comm_;
  models::Gpt2 model_;
  ShardedModel sharded_;
  torch::optim::AdamW optimizer_;
  TrainingState state_;
};

/// The configuration that transformers wrote into a folder.
models::Gpt2Config read_config(const std::filesystem::path& folder);

}  // namespace tessera::testing
