#include <tessera/shard/refuse_modules.h>

#include <tessera/core/error.h>
#include <tessera/shard/named_tensors.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <string>

namespace tessera {
namespace {

/// Calls `check` with the options of every embedding of either kind.
template <class Check>
void for_each_embedding(const torch::nn::Module& model, const Check& check) {
  for (const auto& entry : model.named_modules()) {
    if (const auto* embedding = entry.value()->as<torch::nn::EmbeddingImpl>()) check(entry.key(), embedding->options);
    if (const auto* bag = entry.value()->as<torch::nn::EmbeddingBagImpl>()) check(entry.key(), bag->options);
  }
}

}  // namespace

void refuse_sparse_gradients(const torch::nn::Module& model) {
  for_each_embedding(model, [](const std::string& name, const auto& options) {
    if (!options.sparse()) return;
    throw ConfigError("the embedding \"" + name +
                      "\" makes sparse gradients, and shards have dense ones: build it with sparse(false)");
  });
}

void refuse_devices(const torch::nn::Module& model) {
  const NamedTensors state = state_of(model);
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    if (state.tensors[i].is_cpu()) continue;
    throw ConfigError(state.names[i] + " is on " + state.tensors[i].device().str() +
                      ": models on devices are not shared between ranks yet. Move the model to the CPU first");
  }
}

void refuse_renormalising_modules(const torch::nn::Module& model) {
  for_each_embedding(model, [](const std::string& name, const auto& options) {
    if (!options.max_norm()) return;
    throw ConfigError("the embedding \"" + name +
                      "\" has max_norm: its forward shortens the rows that it looks up, each rank those of its own "
                      "batch, and the ranks' weights would drift apart. Build it without, and after each step "
                      "call renorm_(norm_type, 0, max_norm) on its weight, under NoGradGuard and on every rank");
  });
}

}  // namespace tessera
