#pragma once

#include <tessera/core/options.h>

#include <torch/arg.h>

#include <cstdint>

namespace tessera::models {

/// How a text is continued.
struct GenerateOptions {
  /// How many tokens to add.
  TORCH_ARG(std::int64_t, max_new_tokens) = 100;
  /// Below 1 the likely tokens become likelier, above 1 less so. 0: always the likeliest, without chance.
  TORCH_ARG(double, temperature) = 1.0;
  /// Only the so many likeliest tokens can be drawn; 0 for all.
  TORCH_ARG(std::int64_t, top_k) = 0;
  /// Only the likeliest tokens that together have this probability can be drawn; 1 for all.
  TORCH_ARG(double, top_p) = 1.0;
  /// Chance comes from a generator of its own: the same seed gives the same text.
  TORCH_ARG(std::int64_t, seed) = 0;
  /// Keep the keys and values of former tokens, so that each token costs one step, not one for every token before it.
  /// Off to save their memory, or to check that it makes no difference.
  TORCH_ARG(bool, use_cache) = true;
  /// A text ends with this token; -1 for none. In a batch the others go on, and it is repeated meanwhile.
  TORCH_ARG(std::int64_t, stop_token) = -1;

 public:
  static const FieldList<GenerateOptions>& fields();
  /// Throws ConfigError with all faults at once.
  void check() const;
};

}  // namespace tessera::models
