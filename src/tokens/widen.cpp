#include "tokens/widen.h"

#include <cstring>

namespace tessera::tokens {
namespace {

// The copies of single numbers become plain loads and stores, which the compiler turns into vector instructions.
template <class T>
void widen_from(const std::byte* __restrict from, std::int64_t* __restrict to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    to[i] = static_cast<std::int64_t>(token);  // NOLINT: of an int8 the sign is meant
  }
}

template <class T>
void narrow_to(const std::int64_t* __restrict from, std::byte* __restrict to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const T token = static_cast<T>(from[i]);
    std::memcpy(to + i * sizeof(T), &token, sizeof(T));
  }
}

/// Calls `function` with a number of the type that tokens have in the file.
template <class Function>
void with_number(TokenType type, Function function) {
  switch (type) {
    case TokenType::kUint8:
      return function(std::uint8_t{});
    case TokenType::kInt8:
      return function(std::int8_t{});
    case TokenType::kInt16:
      return function(std::int16_t{});
    case TokenType::kUint16:
      return function(std::uint16_t{});
    case TokenType::kInt32:
      return function(std::int32_t{});
    case TokenType::kUint32:
      return function(std::uint32_t{});
    case TokenType::kInt64:
      return function(std::int64_t{});
  }
}

}  // namespace

void widen(TokenType type, const std::byte* from, std::span<std::int64_t> to) {
  with_number(type, [&](auto number) { widen_from<decltype(number)>(from, to.data(), to.size()); });
}

void narrow(TokenType type, std::span<const std::int64_t> from, std::byte* to) {
  with_number(type, [&](auto number) { narrow_to<decltype(number)>(from.data(), to, from.size()); });
}

}  // namespace tessera::tokens
