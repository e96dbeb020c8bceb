#include <tessera/core/error.h>

#include "tessera/data/sentencepiece.h"

namespace tessera::app {

std::unique_ptr<Tokenizer> make_sentencepiece(const std::string& model) {
  throw ConfigError("the model " + model +
                    " needs SentencePiece, and this tessera was built without it: install it (Debian: "
                    "libsentencepiece-dev) and configure with -DTESSERA_WITH_SENTENCEPIECE=ON, or use the tokenizer "
                    "bytes");
}

}  // namespace tessera::app
