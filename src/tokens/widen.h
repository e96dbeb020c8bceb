#pragma once

#include <tessera/tokens/token_type.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::tokens {

/// Tokens as they lie in a file, as numbers of 64 bits. `from` needs no alignment. Requires: as many as `to` holds.
void widen(TokenType type, const std::byte* from, std::span<std::int64_t> to);

/// The other way; every token must fit the type. `to` needs no alignment, and has room for all.
void narrow(TokenType type, std::span<const std::int64_t> from, std::byte* to);

}  // namespace tessera::tokens
