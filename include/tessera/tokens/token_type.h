#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

/// How a token lies in a file. All are little-endian.
enum class TokenType { kUint8, kInt8, kInt16, kUint16, kInt32, kUint32, kInt64 };

/// "uint16" and so on; throws ConfigError for anything else.
TokenType parse_token_type(std::string_view name);
std::string_view to_string(TokenType type);

std::size_t bytes_of(TokenType type);
/// Tokens are numbers from 0 up, so this is all that a type holds.
std::int64_t largest_token(TokenType type);

/// What Megatron's own tools choose: uint16 for vocabularies below 65,500, else int32.
TokenType token_type_for(std::int64_t vocabulary_size);

}  // namespace tessera
