#pragma once

#include <tessera/core/options.h>

#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::models {

/// The shape of a GPT-2. The defaults are those of "gpt2", 124 million parameters.
struct Gpt2Config {
  /// Tokens are numbers below this. 256 for bytes.
  TORCH_ARG(std::int64_t, vocab_size) = 50257;
  /// The longest text that the model sees, in tokens: there is a trained embedding for each position.
  TORCH_ARG(std::int64_t, context) = 1024;
  /// The numbers that stand for a token inside the model.
  TORCH_ARG(std::int64_t, width) = 768;
  /// Blocks of attention and multilayer perceptron.
  TORCH_ARG(std::int64_t, num_layers) = 12;
  /// Heads of attention; they divide the width.
  TORCH_ARG(std::int64_t, num_heads) = 12;
  /// The inner width of the multilayer perceptron; 0 for four times `width`.
  TORCH_ARG(std::int64_t, mlp_width) = 0;
  /// How often, in training, elements are dropped: of the embeddings, of the attention, of what a block adds. For large
  /// data that is seen once, 0 is usual.
  TORCH_ARG(double, embedding_dropout) = 0.1;
  TORCH_ARG(double, attention_dropout) = 0.1;
  TORCH_ARG(double, residual_dropout) = 0.1;
  /// What LayerNorm adds to the variance.
  TORCH_ARG(double, layer_norm_epsilon) = 1e-5;
  /// The standard deviation of fresh weights.
  TORCH_ARG(double, init_std) = 0.02;

 public:
  static const FieldList<Gpt2Config>& fields();

  /// The published sizes "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", and "gpt2-tiny", "gpt2-mini" on bytes, for
  /// tests and first runs. Throws ConfigError with all names for any other.
  static Gpt2Config named(const std::string& name);
  static std::vector<std::string> names();

  /// The three kinds of dropout at once.
  Gpt2Config& dropout(double value) {
    return embedding_dropout(value).attention_dropout(value).residual_dropout(value);
  }

  /// Throws ConfigError with all faults at once.
  void check() const;

  std::int64_t inner_width() const { return mlp_width() == 0 ? 4 * width() : mlp_width(); }
  std::int64_t head_width() const { return width() / num_heads(); }
  /// The parameters of the model. The output layer is the token embedding, and counts once.
  std::int64_t num_parameters() const;
};

}  // namespace tessera::models
