#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "gpt2/gpt2.h"

namespace tessera::testing {

inline models::Gpt2Config small_config() {
  return models::Gpt2Config().vocab_size(31).context(16).width(24).num_layers(2).num_heads(3).dropout(0);
}

/// Weights from a generator of its own, spread wide enough that logits are far apart.
inline models::Gpt2 small_gpt2(const models::Gpt2Config& config = small_config().init_std(0.3)) {
  models::Gpt2 model(config);
  model->reset_parameters(at::detail::createCPUGenerator(7));
  return model;
}

inline at::Tensor some_tokens(std::int64_t batch, std::int64_t length, std::int64_t vocab_size = 31) {
  return (at::arange(batch * length, at::kLong) * 7 + 3).remainder(vocab_size).view({batch, length});
}

}  // namespace tessera::testing
