#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace tessera::models {

/// The bytes of a text as tokens, [1, bytes]. The simplest of vocabularies: 256 tokens, and nothing to train.
at::Tensor bytes_to_tokens(std::string_view text);

/// The bytes that tokens stand for, as they are: the output of a model need not be UTF-8.
/// Throws ConfigError for a token that is no byte.
std::string tokens_to_bytes(const at::Tensor& tokens);

}  // namespace tessera::models
