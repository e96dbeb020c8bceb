#pragma once

#include <tessera/checkpoint/safetensors.h>
#include <tessera/comm/world.h>
#include <tessera/shard/parallel_model.h>

#include <filesystem>
#include <optional>

#include "gpt2/gpt2.h"

namespace tessera::testing {

/// What a GPT-2 did with the tokens of tokens.safetensors, from the weights in the same folder. reference.py does the
/// same in Python, and stores it under the same names.
struct Replay {
  models::Gpt2 model;                     ///< after training
  std::optional<ParallelModel> parallel;  ///< on several ranks
  at::Tensor logits;                      ///< of the first batch, before training
  TensorsByName gradients;                ///< of the first batch, by the names of transformers
  at::Tensor losses;                      ///< [steps] in double: of each batch, before the step that it causes
};

/// Trains with torch::optim::AdamW on one batch a step, with the settings that the file of tokens states. The ranks of
/// the world share each layer. Collective.
Replay replay_gpt2(const std::filesystem::path& folder, const World& world);

}  // namespace tessera::testing
