#pragma once

#include <tessera/core/mapped_file.h>
#include <tessera/tokens/token_file.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "tokens/token_formats.h"

namespace tessera::tokens {

/// Converts tokens as they lie in a file to numbers of 64 bits, as many as `to` has room for. `from` needs no
/// alignment.
void widen(TokenType type, const std::byte* from, std::span<std::int64_t> to);

/// The inverse; every token must fit the type. `to` needs no alignment, and has room for all.
void narrow(TokenType type, std::span<const std::int64_t> from, std::byte* to);

}  // namespace tessera::tokens

namespace tessera {

struct TokenFile::State {
  std::string path;
  TokenFormat format{};
  TokenType type{};
  std::int64_t num_tokens = 0;
  std::span<const std::byte> data;
  std::optional<tokens::MegatronIndex> index;
  std::unique_ptr<MappedFile> data_file;  ///< what the above points into; null when the caller keeps it
  std::unique_ptr<MappedFile> index_file;
};

namespace tokens {

/// From memory, which must outlive the result. They throw as TokenFile::open does.
std::shared_ptr<TokenFile::State> megatron_state(std::span<const std::byte> index, const std::string& index_name,
                                                 std::span<const std::byte> data, const std::string& data_name);
std::shared_ptr<TokenFile::State> llmc_state(std::span<const std::byte> data, const std::string& name);

}  // namespace tokens
}  // namespace tessera
