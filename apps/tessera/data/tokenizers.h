#pragma once

#include <tessera/core/error.h>
#include <tessera/tokens/tokenizer.h>

#include <memory>
#include <string>

#include "tessera/data/sentencepiece.h"

namespace tessera::app {

/// The tokenizer that `--tokenizer NAME --model FILE` select. Throws ConfigError when they do not go together.
inline std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& model) {
  if (name == "sentencepiece") {
    if (model.empty()) throw ConfigError("the tokenizer sentencepiece needs the file of a model: --model FILE");
    return make_sentencepiece(model);
  }
  if (name != "bytes") throw ConfigError("there is no tokenizer " + name + "; expected bytes or sentencepiece");
  if (!model.empty()) throw ConfigError("--model " + model + " is for the tokenizer sentencepiece");
  return std::make_unique<ByteTokenizer>();
}

}  // namespace tessera::app
