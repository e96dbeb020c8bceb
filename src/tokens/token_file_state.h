#pragma once

#include <tessera/core/mapped_file.h>
#include <tessera/tokens/token_file.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "tokens/megatron_index.h"

namespace tessera {

struct TokenFile::State {
  std::string path;
  TokenFormat format{};
  TokenType type{};
  std::int64_t num_tokens = 0;
  std::span<const std::byte> data;
  std::optional<tokens::MegatronIndex> index;
  std::unique_ptr<MappedFile> data_file;  ///< what the above points into; null when others keep it
  std::unique_ptr<MappedFile> index_file;
};

namespace tokens {

/// From memory, which outlives them. They throw as TokenFile::open does.
std::shared_ptr<TokenFile::State> megatron_state(std::span<const std::byte> index, const std::string& index_name,
                                                 std::span<const std::byte> data, const std::string& data_name);
std::shared_ptr<TokenFile::State> llmc_state(std::span<const std::byte> data, const std::string& name);

}  // namespace tokens
}  // namespace tessera
