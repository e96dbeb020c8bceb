#pragma once

#include "generation/options.h"
#include "gpt2/gpt2.h"

namespace tessera::models {

/// Continues texts: [batch, tokens] to [batch, tokens + new ones], fewer than `max_new_tokens` if all reached the stop
/// token. Dropout is off meanwhile; afterwards the model is in its former mode.
///
/// A text may become longer than the model's context. Then the model sees only its end: when the context is full, the
/// first half of it is dropped. The tokens are the same with the cache and without.
/// Throws ConfigError for an empty text and for options that make no sense.
at::Tensor generate(Gpt2& model, const at::Tensor& tokens, const GenerateOptions& options = {});

/// The first token that the model sees of a text of `length` tokens.
std::int64_t window_start(std::int64_t length, std::int64_t context);

}  // namespace tessera::models
