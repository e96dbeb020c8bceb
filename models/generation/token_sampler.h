#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "generation/options.h"

namespace tessera::models {

/// Draws tokens from logits, from a generator of its own.
/// Thread-safety: none.
class TokenSampler {
 public:
  /// Throws ConfigError for options that make no sense.
  explicit TokenSampler(const GenerateOptions& options);

  /// [batch, vocabulary] of logits to [batch, 1] of tokens, on the same device.
  at::Tensor draw(const at::Tensor& logits);

 private:
  GenerateOptions options_;
  at::Generator generator_;
};

/// [batch, vocabulary]: the probabilities from which a token is drawn, in fp32 on the CPU.
/// Requires: a temperature above 0.
at::Tensor token_probabilities(const at::Tensor& logits, const GenerateOptions& options);

}  // namespace tessera::models
