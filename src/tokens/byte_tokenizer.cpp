#include <tessera/core/error.h>
#include <tessera/tokens/tokenizer.h>

namespace tessera {

void ByteTokenizer::encode(std::string_view text, std::vector<std::int64_t>& tokens) const {
  const std::size_t before = tokens.size();
  tokens.resize(before + text.size());
  for (std::size_t i = 0; i < text.size(); ++i) tokens[before + i] = static_cast<unsigned char>(text[i]);
}

std::string ByteTokenizer::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const std::int64_t token : tokens) {
    if (token == kEndOfDocument) continue;
    if (token < 0 || token > kEndOfDocument) {
      throw ConfigError("token " + std::to_string(token) +
                        " is no byte; expected 0 to 256. Were these tokens made by " + "another tokenizer?");
    }
    text += static_cast<char>(token);
  }
  return text;
}

}  // namespace tessera
