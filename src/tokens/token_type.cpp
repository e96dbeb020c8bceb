#include <tessera/core/error.h>
#include <tessera/tokens/token_type.h>

#include <array>
#include <limits>
#include <string>

namespace tessera {
namespace {

struct Facts {
  TokenType type;
  std::string_view name;
  std::size_t num_bytes;
  std::int64_t largest;
};

constexpr std::array kFacts = {
    Facts{TokenType::kUint8, "uint8", 1, std::numeric_limits<std::uint8_t>::max()},
    Facts{TokenType::kInt8, "int8", 1, std::numeric_limits<std::int8_t>::max()},
    Facts{TokenType::kInt16, "int16", 2, std::numeric_limits<std::int16_t>::max()},
    Facts{TokenType::kUint16, "uint16", 2, std::numeric_limits<std::uint16_t>::max()},
    Facts{TokenType::kInt32, "int32", 4, std::numeric_limits<std::int32_t>::max()},
    Facts{TokenType::kUint32, "uint32", 4, std::numeric_limits<std::uint32_t>::max()},
    Facts{TokenType::kInt64, "int64", 8, std::numeric_limits<std::int64_t>::max()},
};
constexpr std::int64_t kSmallVocabulary = 65'500;

const Facts& facts_of(TokenType type) {
  for (const Facts& facts : kFacts) {
    if (facts.type == type) return facts;
  }
  throw InternalError("a token type without a name: " + std::to_string(static_cast<int>(type)));
}

}  // namespace

TokenType parse_token_type(std::string_view name) {
  std::string known;
  for (const Facts& facts : kFacts) {
    if (facts.name == name) return facts.type;
    known += (known.empty() ? "" : ", ") + std::string(facts.name);
  }
  throw ConfigError("\"" + std::string(name) + "\" is no type of tokens; expected one of " + known);
}

std::string_view to_string(TokenType type) { return facts_of(type).name; }
std::size_t bytes_of(TokenType type) { return facts_of(type).num_bytes; }
std::int64_t largest_token(TokenType type) { return facts_of(type).largest; }

TokenType token_type_for(std::int64_t vocabulary_size) {
  return vocabulary_size < kSmallVocabulary ? TokenType::kUint16 : TokenType::kInt32;
}

}  // namespace tessera
