#pragma once

#include <tessera/tokens/tokenizer.h>

#include <memory>
#include <string>

namespace tessera::app {

/// The tokenizer of a SentencePiece model. Throws ConfigError when the file is no model, or when this `tessera` was
/// built without SentencePiece.
std::unique_ptr<Tokenizer> make_sentencepiece(const std::string& model);

}  // namespace tessera::app
